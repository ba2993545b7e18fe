//! Enumerations whose values have a name in rows.

macro_rules! named {
    (
        $(#[$about:meta])*
        $enumeration:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $enumeration {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)+
        }

        impl $enumeration {
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
pub(super) use named;
