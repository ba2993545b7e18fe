//! Values of keys that only lines of a certain level have.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value of a key that not every line has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Observed<T> {
    /// Value that was not looked for: the line does not have the key.
    #[default]
    Absent,
    /// Value that was not seen, or does not exist: `null`.
    Unknown,
    Known(T),
}

impl<T> Observed<T> {
    /// Makes the value of a key that was looked for: known, or else unknown.
    pub fn looked_for(value: Option<T>) -> Self {
        value.map_or(Self::Unknown, Self::Known)
    }

    /// Applies `follows` to a known value; absent and unknown values stay so.
    pub fn map<U>(&self, follows: impl FnOnce(&T) -> U) -> Observed<U> {
        match self {
            Self::Absent => Observed::Absent,
            Self::Unknown => Observed::Unknown,
            Self::Known(value) => Observed::Known(follows(value)),
        }
    }

    /// Tells whether the line lacks the key.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl<T: Copy> Observed<T> {
    /// Returns the value, if it is known.
    pub fn get(&self) -> Option<T> {
        match self {
            Self::Known(value) => Some(*value),
            Self::Absent | Self::Unknown => None,
        }
    }
}

impl<T: Serialize> Serialize for Observed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(value) => value.serialize(serializer),
            Self::Absent | Self::Unknown => serializer.serialize_none(),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Observed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(Self::looked_for)
    }
}
