//! The library's own debugging information, and what it states about functions, structs and enumerations.
//!
//! The order of reading follows from the sizes: a library has tens of megabytes of debugging information, and
//! the answers lie in a few compilation units. Those are found by address (`.debug_aranges`), read one by
//! one, and only their outermost entries are visited. Structs are looked for in these units first, because
//! they are what the functions asked for work on, and only then in the others.

mod abbreviation_table;
mod address_map;
mod entry;
mod function;
mod limits;
mod location;
mod location_list;
mod reader;
mod search;
mod store;
mod structs;
mod types;

pub use function::{DeclaredParam, TypeClass};
pub use location::is_in_own_frame;
pub use search::{Found, Wanted, search};
