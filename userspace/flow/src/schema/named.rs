//! Enumerations whose values have a name in rows.

/// Declares an enumeration, with the name that each value has in JSON, and its `ALL`. Behind them, and not
/// among all, there can be the value that stands for any other name.
macro_rules! named {
    (
        $(#[$about:meta])*
        $enumeration:ident {
            $($(#[$doc:meta])* $variant:ident = $name:literal,)+
            $(; $(#[$of_other:meta])* $other:ident = $other_name:literal,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $enumeration {
            $(#[serde(rename = $name)] $(#[$doc])* $variant,)+
            $($(#[$of_other])* #[serde(other)] $other,)?
        }

        impl $enumeration {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name by which the value is written.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                    $(Self::$other => $other_name,)?
                }
            }
        }
    };
}
pub(crate) use named;
