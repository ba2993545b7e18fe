//! Options whose value is `auto`, or one of an enum's.

use clap::{
    ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

/// `None`: `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auto<T>(pub Option<T>);

/// Parses `auto`, whose help is given, and the enum's values.
pub(super) fn auto_or<T: ValueEnum + Send + Sync + 'static>(
    help: &'static str,
) -> impl TypedValueParser<Value = Auto<T>> {
    let auto = PossibleValue::new("auto").help(help);
    let values = T::value_variants().iter().filter_map(T::to_possible_value);
    PossibleValuesParser::new(std::iter::once(auto).chain(values))
        .map(|text| Auto(T::from_str(&text, false).ok()))
}
