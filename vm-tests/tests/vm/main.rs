//! Scenarios on Debian's kernels. They are one target, so that only `cargo test --test vm` boots machines. The list is
//! `vm-tests/src/scenario/list.rs`.

macro_rules! tests {
    ($($group:ident {
        $($module:ident::$run:ident = $name:literal: $about:literal {
            $($(#[$ignored:meta])* $test:ident: $kernel:ident,)*
        })*
    })*) => {
        $(mod $group {
            use isotherm_vm_tests::scenario;

            $($(
                #[test]
                $(#[$ignored])*
                fn $test() {
                    scenario::test(concat!(stringify!($group), "::", stringify!($test)), stringify!($test));
                }
            )*)*
        })*
    };
}

isotherm_vm_tests::scenario_tests!(tests);
