//! Enumerations whose values have a name in rows.

/// Declares an enumeration, with the name that each value has in JSON, and its `ALL`.
macro_rules! named {
    (
        $(#[$about:meta])*
        $enumeration:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $enumeration {
            $(#[serde(rename = $name)] $(#[$doc])* $variant,)+
        }

        impl $enumeration {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name by which the value is written.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
pub(crate) use named;
