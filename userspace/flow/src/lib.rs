//! Turns records into flows: pure, without files, clocks, threads or locks.
//!
//! The modules stand in the order in which data passes them: a record's bytes as a probe wrote them
//! ([`wire`]); the event that the record tells of ([`decode`]); calls put together to ops, messages and API
//! calls ([`model`]); the rows that are written and read ([`schema`]); and counters of what passed
//! ([`statistics`]). [`quota`] is for all of them: what a process may take from others.

use serde::{Deserialize as _, Deserializer, de::DeserializeOwned};

// In the order in which data passes them; the empty lines keep rustfmt from sorting them.
pub mod wire;

pub mod decode;

pub mod model;

pub mod schema;

pub mod statistics;

pub mod iterations;

pub mod quota;

// Records as a recording stores them, whose they are, and the report of it all.
pub mod recording;

pub mod identity;

pub mod session;

// Text for people.
pub mod text;

// For tests, and with them: nothing of it is in the product.
#[cfg(any(test, feature = "made"))]
#[path = "../tests/made/mod.rs"]
pub mod made;

/// Reads a value that is missing where it is null, or a name that a newer version has added.
pub fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<serde_json::Value>::deserialize(from)?.and_then(|value| serde_json::from_value(value).ok()))
}

/// Tells whether a value is the default: reports leave such values out.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
