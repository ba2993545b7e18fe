//! Enumerations whose values have a name in the output.

/// Defines such an enumeration: `Variant = "NAME"`. Its JSON is the name.
macro_rules! named {
    ($(#[$about:meta])* $enumeration:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        pub enum $enumeration {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)+
        }

        impl $enumeration {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the place in the order, which is NCCL's number where it has one.
            pub fn number(self) -> u8 {
                self as u8
            }

            pub fn from_number(number: u64) -> Option<Self> {
                Self::ALL.get(usize::try_from(number).ok()?).copied()
            }

            /// Returns the name in the output.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
pub(super) use named;
