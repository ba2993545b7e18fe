//! Requests: what a caller wants to know about a library.

/// The functions, structs and enumerations to look up.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub functions: Vec<FunctionSpec>,
    /// Structs and unions, by name. The ones they contain by value come along.
    pub structs: Vec<String>,
    /// Enumerations, by name or by the name of their `typedef`.
    pub enums: Vec<String>,
    /// Variables, by the names of their symbols.
    pub variables: Vec<&'static str>,
}

/// A function to look up. All copies of it are wanted.
#[derive(Clone, Debug)]
pub struct FunctionSpec {
    /// The unqualified name of a free function, such as `SaveProxy`, or a C name such as `ncclAllReduce`.
    pub name: &'static str,
    pub required: bool,
    /// Phrase that says what an operator does not get if the function is missing.
    pub lost_without: &'static str,
    /// Parameters that the caller reads, by declared name; a version that lacks one is not a fault.
    pub params: Vec<&'static str>,
    /// Functions that serve the same purpose in other versions: if one of them is found, nothing is lost.
    pub alternatives: &'static [&'static str],
    /// True for a function that is part of the API in some versions only: a library without it cannot be
    /// asked for it, so nothing is lost.
    pub in_some_versions: bool,
}

impl FunctionSpec {
    /// Describes a function that can be done without.
    pub fn optional(name: &'static str, params: &[&'static str], lost_without: &'static str) -> Self {
        Self {
            name,
            required: false,
            lost_without,
            params: params.to_vec(),
            alternatives: &[],
            in_some_versions: false,
        }
    }
}
