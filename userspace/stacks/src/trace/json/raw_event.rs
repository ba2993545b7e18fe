//! Fields of an event. A field of another type than expected counts as missing: traces come from many
//! programs.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::time::nanoseconds;

/// A number or a text. A text that is a whole number is that number: Chrome writes both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Scalar {
    #[default]
    None,
    Number(i64),
    Text(Box<str>),
}

impl Scalar {
    pub(super) fn is_some(&self) -> bool {
        *self != Self::None
    }
}

/// An event, in buffers that are used again for the next.
#[derive(Debug, Default)]
pub(super) struct RawEvent {
    pub(super) phase: String,
    pub(super) name: String,
    pub(super) category: String,
    /// Begin, in ns.
    pub(super) begin: Option<i64>,
    /// Duration, in ns.
    pub(super) duration: Option<i64>,
    pub(super) pid: Scalar,
    pub(super) tid: Scalar,
    pub(super) id: Scalar,
    pub(super) bind: Scalar,
    pub(super) correlation: Option<u64>,
}

impl RawEvent {
    /// Reads the next event over this one.
    pub(super) fn read<'de, D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        self.phase.clear();
        self.name.clear();
        self.category.clear();
        (self.begin, self.duration, self.correlation) = (None, None, None);
        (self.pid, self.tid) = (Scalar::None, Scalar::None);
        (self.id, self.bind) = (Scalar::None, Scalar::None);
        deserializer.deserialize_map(Fields(self))
    }
}

struct Fields<'r>(&'r mut RawEvent);

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an event, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let raw = self.0;
        while let Some(key) = map.next_key()? {
            match key {
                Key::Phase => map.next_value_seed(Text(&mut raw.phase))?,
                Key::Name => map.next_value_seed(Text(&mut raw.name))?,
                Key::Category => map.next_value_seed(Text(&mut raw.category))?,
                Key::Begin => raw.begin = nanoseconds(map.next_value::<Box<RawValue>>()?.get()),
                Key::Duration => raw.duration = nanoseconds(map.next_value::<Box<RawValue>>()?.get()),
                Key::Pid => raw.pid = map.next_value_seed(Value)?,
                Key::Tid => raw.tid = map.next_value_seed(Value)?,
                Key::Id => raw.id = map.next_value_seed(Value)?,
                Key::Bind => raw.bind = map.next_value_seed(Value)?,
                Key::Args => map.next_value_seed(Args(&mut raw.correlation))?,
                Key::Correlation | Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[derive(serde::Deserialize)]
#[serde(field_identifier)]
enum Key {
    #[serde(rename = "ph")]
    Phase,
    #[serde(rename = "name")]
    Name,
    #[serde(rename = "cat")]
    Category,
    #[serde(rename = "ts")]
    Begin,
    #[serde(rename = "dur")]
    Duration,
    #[serde(rename = "pid")]
    Pid,
    #[serde(rename = "tid")]
    Tid,
    #[serde(rename = "id")]
    Id,
    #[serde(rename = "bind_id")]
    Bind,
    #[serde(rename = "args")]
    Args,
    #[serde(rename = "correlation")]
    Correlation,
    #[serde(other)]
    Other,
}

/// Defines the visitor's methods for unexpected types: the value is read, and gives `$nothing`.
macro_rules! nothing {
    ($nothing:expr, $($method:ident: $type:ty),*) => {
        $(fn $method<E>(self, _: $type) -> Result<Self::Value, E> {
            Ok($nothing)
        })*

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($nothing)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok($nothing)
        }
    };
}

/// Defines the visitor's method for a map, of which no key is looked at.
macro_rules! nothing_of_a_map {
    ($nothing:expr) => {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok($nothing)
        }
    };
}

/// Reads a text into a buffer that is empty.
struct Text<'t>(&'t mut String);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.0.clear();
        self.0.push_str(text);
        Ok(())
    }

    nothing!((), visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64);
    nothing_of_a_map!(());
}

struct Value;

impl<'de> DeserializeSeed<'de> for Value {
    type Value = Scalar;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Scalar, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value {
    type Value = Scalar;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number.cast_signed()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(text.parse().map_or_else(|_| Scalar::Text(text.into()), Scalar::Number))
    }

    nothing!(Scalar::None, visit_bool: bool, visit_f64: f64);
    nothing_of_a_map!(Scalar::None);
}

/// Looks for `correlation` among the arguments.
struct Args<'a>(&'a mut Option<u64>);

impl<'de> DeserializeSeed<'de> for Args<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Args<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key()? {
            if matches!(key, Key::Correlation) {
                // CUPTI begins at 1; 0 is none.
                *self.0 = match map.next_value_seed(Value)? {
                    Scalar::Number(number) => u64::try_from(number).ok().filter(|number| *number > 0),
                    Scalar::None | Scalar::Text(_) => None,
                };
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    nothing!((), visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);
}
