//! The three kinds of address that a uprobe tool must not mix.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

address! {
    /// Byte position in the file. The only kind of address that a uprobe is attached at.
    FileOffset
}
address! {
    /// Virtual address as the ELF file and its DWARF state it, before the load bias.
    ElfVaddr
}
address! {
    /// Address in a running process.
    RuntimeAddr
}
