//! What a caller wants to know about a library.

use std::borrow::Cow;

/// The functions, structs and enumerations to look up.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Functions.
    pub functions: Vec<FunctionSpec>,
    /// Structs and unions, by name. The ones they contain by value come along.
    pub structs: Vec<String>,
    /// Enumerations, by name or by the name of their `typedef`.
    pub enums: Vec<String>,
}

/// A function to look up. All copies of it are wanted.
#[derive(Clone, Debug)]
pub struct FunctionSpec {
    /// The unqualified name of a free function, such as `SaveProxy`, or a C name such as `ncclAllReduce`.
    pub name: Cow<'static, str>,
    /// Nothing can be traced without it.
    pub required: bool,
    /// What an operator does not get if it is missing; one phrase.
    pub lost_without: Cow<'static, str>,
    /// Parameters that the caller reads, by declared name; a version that lacks one is not a fault.
    pub params: Vec<Cow<'static, str>>,
    /// Functions that serve the same purpose in other versions: if one of them is found, nothing is lost.
    pub alternatives: Vec<Cow<'static, str>>,
    /// Part of the API in some versions only: a library without it cannot be asked for it, so nothing is
    /// lost.
    pub in_some_versions: bool,
}

impl FunctionSpec {
    /// A function that can be done without.
    pub fn optional(name: &'static str, params: &[&'static str], lost_without: &'static str) -> Self {
        Self {
            name: name.into(),
            required: false,
            lost_without: lost_without.into(),
            params: params.iter().map(|param| Cow::Borrowed(*param)).collect(),
            alternatives: Vec::new(),
            in_some_versions: false,
        }
    }

    /// A function without which nothing can be traced.
    pub fn required(name: &'static str, params: &[&'static str], lost_without: &'static str) -> Self {
        Self { required: true, ..Self::optional(name, params, lost_without) }
    }

    /// Names the functions that serve the same purpose in other versions.
    #[must_use]
    pub fn or(mut self, alternatives: &[&'static str]) -> Self {
        self.alternatives = alternatives.iter().map(|name| Cow::Borrowed(*name)).collect();
        self
    }
}
