//! The messages of a Perfetto trace that we write, with their fields' numbers in Perfetto's .proto files
//! (protos/perfetto/trace/, v59).
//!
//! The reader of foreign traces (`stacks::trace::perfetto`) has its own where they would be larger than it
//! wants: nothing else of a foreign file is unpacked into memory.

use prost::Message;

pub(super) use stacks::trace::perfetto_messages::{
    Clock, ClockSnapshot, Defaults, INCREMENTAL_STATE_CLEARED, NEEDS_INCREMENTAL_STATE, SLICE_BEGIN,
    SLICE_END,
};

/// `TracePacket`
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub(super) clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub(super) sequence: u32,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    pub(super) sequence_flags: u32,
    #[prost(message, optional, tag = "59")]
    pub(super) defaults: Option<Defaults>,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
    #[prost(bool, tag = "87")]
    pub(super) is_first_on_sequence: bool,
}

/// `BuiltinClock`
pub(super) const REALTIME: u32 = 1;
pub(super) const MONOTONIC: u32 = 3;

/// `TrackDescriptor`
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<CounterDescriptor>,
    #[prost(int32, tag = "11")]
    pub(super) child_ordering: i32,
    #[prost(int32, optional, tag = "12")]
    pub(super) sibling_order_rank: Option<i32>,
    #[prost(string, optional, tag = "14")]
    pub(super) description: Option<String>,
    #[prost(message, optional, tag = "18")]
    pub(super) state: Option<StateDescriptor>,
    #[prost(int32, tag = "19")]
    pub(super) process_ordering: i32,
}

/// `TrackDescriptor.ChildTracksOrdering` and `TrackDescriptor.ProcessOrdering`: by `sibling_order_rank`.
pub(super) const CHILDREN_BY_RANK: i32 = 3;
pub(super) const PROCESSES_BY_RANK: i32 = 1;

/// `ProcessDescriptor`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pub(super) pid: i32,
    #[prost(string, tag = "6")]
    pub(super) name: String,
}

/// `CounterDescriptor`
#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(int32, tag = "3")]
    pub(super) unit: i32,
}

/// `CounterDescriptor.Unit`
pub(super) const UNIT_SIZE_BYTES: i32 = 3;

/// `StateDescriptor`
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct StateDescriptor {}

/// `InternedData`
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub(super) event_categories: Vec<Interned>,
    #[prost(message, repeated, tag = "2")]
    pub(super) event_names: Vec<Interned>,
    #[prost(message, repeated, tag = "3")]
    pub(super) debug_annotation_names: Vec<Interned>,
    #[prost(message, repeated, tag = "29")]
    pub(super) debug_annotation_string_values: Vec<Interned>,
}

/// `EventCategory`, `EventName`, `DebugAnnotationName`, `InternedString`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Interned {
    #[prost(uint64, tag = "1")]
    pub(super) iid: u64,
    #[prost(string, tag = "2")]
    pub(super) text: String,
}

/// `TrackEvent`
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub(super) category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    pub(super) kind: i32,
    #[prost(uint64, optional, tag = "10")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, tag = "11")]
    pub(super) track_uuid: u64,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub(super) counter_value: Option<i64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(super) flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub(super) terminating_flow_ids: Vec<u64>,
    #[prost(uint64, optional, tag = "52")]
    pub(super) correlation_id: Option<u64>,
}

/// `TrackEvent.Type`
pub(super) const INSTANT: i32 = 3;
pub(super) const COUNTER: i32 = 4;
pub(super) const STATE: i32 = 5;

/// `DebugAnnotation`
#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, tag = "1")]
    pub(super) name_iid: u64,
    #[prost(bool, optional, tag = "2")]
    pub(super) flag: Option<bool>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) unsigned: Option<u64>,
    #[prost(int64, optional, tag = "4")]
    pub(super) signed: Option<i64>,
    #[prost(string, optional, tag = "6")]
    pub(super) text: Option<String>,
    #[prost(uint64, optional, tag = "17")]
    pub(super) text_iid: Option<u64>,
}
