//! Enums whose variants have names.

/// Declares an enum and the names of its variants, each as `Variant = "name"`. After it comes the function that returns
/// the name, and, if it is needed, a constant with all variants, as `all ALL;`.
#[macro_export]
macro_rules! named {
    (
        $(#[$of_type:meta])* $vis:vis enum $type:ident { $($(#[$of:meta])* $variant:ident = $name:literal,)* }
        $(#[$of_function:meta])* fn $function:ident;
    ) => {
        $(#[$of_type])*
        $vis enum $type {
            $($(#[$of])* $variant,)*
        }

        impl $type {
            $(#[$of_function])*
            $vis const fn $function(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
    (
        $(#[$of_type:meta])* $vis:vis enum $type:ident { $($(#[$of:meta])* $variant:ident = $name:literal,)* }
        $(#[$of_function:meta])* fn $function:ident;
        all $all:ident;
    ) => {
        $crate::named! {
            $(#[$of_type])* $vis enum $type { $($(#[$of])* $variant = $name,)* }
            $(#[$of_function])* fn $function;
        }

        impl $type {
            /// Every variant, in its order.
            $vis const $all: [Self; [$($name),*].len()] = [$(Self::$variant),*];
        }
    };
}
