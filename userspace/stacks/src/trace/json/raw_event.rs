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
        let RawEvent { phase, name, category, begin, duration, pid, tid, id, bind, correlation } = self.0;
        while let Some(key) = map.next_key()? {
            let mut any = |are_arguments, take: &mut dyn FnMut(Plain<'_>)| {
                map.next_value_seed(AnyValue { are_arguments, take })
            };
            match key {
                Key::Ph => any(false, &mut |value| value.copy_text(phase))?,
                Key::Name => any(false, &mut |value| value.copy_text(name))?,
                Key::Cat => any(false, &mut |value| value.copy_text(category))?,
                Key::Pid => any(false, &mut |value| *pid = value.scalar())?,
                Key::Tid => any(false, &mut |value| *tid = value.scalar())?,
                Key::Id => any(false, &mut |value| *id = value.scalar())?,
                Key::BindId => any(false, &mut |value| *bind = value.scalar())?,
                Key::Args => any(true, &mut |value| {
                    // CUPTI begins at 1; 0 is none.
                    *correlation = match value.scalar() {
                        Scalar::Number(number) => u64::try_from(number).ok().filter(|number| *number > 0),
                        Scalar::None | Scalar::Text(_) => None,
                    };
                })?,
                Key::Ts => *begin = nanoseconds(map.next_value::<Box<RawValue>>()?.get()),
                Key::Dur => *duration = nanoseconds(map.next_value::<Box<RawValue>>()?.get()),
                Key::Correlation | Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Key {
    Ph,
    Name,
    Cat,
    Ts,
    Dur,
    Pid,
    Tid,
    Id,
    BindId,
    Args,
    Correlation,
    #[serde(other)]
    Other,
}

/// A number or a text, or something else.
#[derive(Clone, Copy)]
enum Plain<'t> {
    Other,
    Number(i64),
    Text(&'t str),
}

impl Plain<'_> {
    fn copy_text(self, buffer: &mut String) {
        if let Plain::Text(text) = self {
            buffer.clear();
            buffer.push_str(text);
        }
    }

    fn scalar(self) -> Scalar {
        match self {
            Plain::Other => Scalar::None,
            Plain::Number(number) => Scalar::Number(number),
            Plain::Text(text) => text.parse().map_or_else(|_| Scalar::Text(text.into()), Scalar::Number),
        }
    }
}

/// Reads a value of any type and hands it on or, of the arguments, that of `correlation`.
struct AnyValue<'t> {
    are_arguments: bool,
    take: &'t mut dyn FnMut(Plain<'_>),
}

impl AnyValue<'_> {
    #[expect(clippy::unnecessary_wraps, reason = "as methods of a visitor return it")]
    fn plain<E>(self, value: Plain<'_>) -> Result<(), E> {
        if !self.are_arguments {
            (self.take)(value);
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for AnyValue<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyValue<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.plain(Plain::Other)
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.plain(Plain::Number(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.plain(Plain::Number(number.cast_signed()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.plain(Plain::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.plain(Plain::Text(text))
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.plain(Plain::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        self.plain(Plain::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if !self.are_arguments {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return self.plain(Plain::Other);
        }
        while let Some(key) = map.next_key()? {
            if matches!(key, Key::Correlation) {
                map.next_value_seed(AnyValue { are_arguments: false, take: &mut *self.take })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}
