//! The messages of a Chakra execution trace, with their fields' numbers in `et_def.proto` (MLCommons Chakra
//! 1.0.0, May 2026; the same in 0.0.4).

use prost::Message;

/// `GlobalMetadata`
#[derive(Clone, PartialEq, Message)]
pub(super) struct GlobalMetadata {
    #[prost(string, tag = "1")]
    pub(super) version: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) attributes: Vec<Attribute>,
}

/// `Node`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(enumeration = "NodeType", tag = "3")]
    pub(super) kind: i32,
    #[prost(uint64, repeated, tag = "4")]
    pub(super) ctrl_deps: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub(super) data_deps: Vec<u64>,
    #[prost(uint64, tag = "6")]
    pub(super) start_time_micros: u64,
    /// Duration; 0 if it is not known.
    #[prost(uint64, tag = "7")]
    pub(super) duration_micros: u64,
    #[prost(message, repeated, tag = "10")]
    pub(super) attributes: Vec<Attribute>,
}

/// `NodeType`
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum NodeType {
    Invalid = 0,
    /// A node that stands for others and does nothing.
    Metadata = 1,
    Compute = 4,
    Send = 5,
    Receive = 6,
    Collective = 7,
}

/// `AttributeProto`, with the types of value that we write.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(oneof = "AttributeValue", tags = "7, 9, 13, 27, 29")]
    pub(super) value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum AttributeValue {
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(bool, tag = "27")]
    Flag(bool),
    #[prost(string, tag = "29")]
    Text(String),
}

impl Attribute {
    pub(super) fn new(name: &str, value: AttributeValue) -> Self {
        Self { name: name.to_owned(), value: Some(value) }
    }
}
