//! Scenarios on Debian's kernels, one target, so that `cargo test --test vm` boots machines and no other does. The list is
//! `vm-tests/src/scenario/list.rs`.

macro_rules! tests {
    ($($group:ident {
        $($module:ident::$scenario:ident { $($(#[$ignored:meta])* $test:ident: $kernel:ident,)* })*
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
