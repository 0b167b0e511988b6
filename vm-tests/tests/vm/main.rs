//! Scenarios on Debian's kernels. They are one target, so that only `cargo test --test vm` boots machines. The list is
//! `vm-tests/src/scenario/list.rs`.

macro_rules! tests {
    ($($scenario:ident = $module:ident::$run:ident [$($kernel:ident $(($why:literal))?),*]: $about:literal)*) => {
        $(mod $scenario {
            $(
                #[test]
                $(#[ignore = $why])?
                fn $kernel() {
                    isotherm_vm_tests::scenario::test(stringify!($scenario), stringify!($kernel));
                }
            )*
        })*
    };
}

isotherm_vm_tests::scenario_tests!(tests);
