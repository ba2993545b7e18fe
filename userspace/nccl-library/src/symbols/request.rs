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

/// Name, type and bytes of a parameter.
pub type Declared = (&'static str, &'static str, u64);

/// Kind of callers of a function: it decides whether the compiler may pass the function's parameters as it
/// likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// Code of other source files: the declared parameters arrive by the platform's calling convention. They
    /// are the same in all versions.
    FromOtherFiles,
    /// CUDA, or the code that starts threads, to which the function's address is given: likewise.
    ByPointer,
    /// Any others; or the parameters changed between versions. Only those that are read are listed.
    Somehow,
}

/// A function to look up. All copies of it are wanted.
#[derive(Clone, Copy, Debug)]
pub struct FunctionSpec {
    /// The unqualified name of a free function, such as `SaveProxy`, or a C name such as `ncclAllReduce`.
    pub name: &'static str,
    pub required: bool,
    pub called: Called,
    /// Phrase that says what an operator does not get if the function is missing.
    pub lost_without: &'static str,
    /// Parameters that the caller reads; a version that lacks one is not a fault.
    pub params: &'static [Declared],
    /// Functions that serve the same purpose in other versions: if one of them is found, nothing is lost.
    pub alternatives: &'static [&'static str],
    /// True for a function that is part of the API in some versions only: a library without it cannot be
    /// asked for it, so nothing is lost.
    pub in_some_versions: bool,
}

impl FunctionSpec {
    /// Describes a function that can be done without.
    pub const fn optional(
        name: &'static str,
        params: &'static [Declared],
        lost_without: &'static str,
    ) -> Self {
        let (required, called, in_some_versions) = (false, Called::Somehow, false);
        Self { name, required, called, lost_without, params, alternatives: &[], in_some_versions }
    }
}
