//! Numbers that are text in JSON, as JSON's readers lose digits of large ones.

/// Declares such a number: how it is written, and how the hexadecimal digits are found in that text.
macro_rules! text_number {
    (
        $(#[$about:meta])*
        pub struct $name:ident: $format:literal, $digits:expr
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, $format, self.0)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                use serde::de::Error;
                let text = String::deserialize(deserializer)?;
                let digits: fn(&str) -> Result<&str, &'static str> = $digits;
                let digits = digits(&text).map_err(D::Error::custom)?;
                u64::from_str_radix(digits, 16).map(Self).map_err(D::Error::custom)
            }
        }

        impl $crate::schema::Cell for $name {
            const TYPE: $crate::schema::CellType = $crate::schema::CellType::Text;

            fn put(&self, cells: &mut impl $crate::schema::Cells) {
                cells.text(&self.to_string());
            }
        }
    };
}
pub(super) use text_number;
