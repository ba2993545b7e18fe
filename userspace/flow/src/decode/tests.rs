//! Numbers that no field of NCCL's can have are refused. None becomes another number that could reach a file.

use nccl_library::{
    layouts::{Enumeration, Field, Layouts, Member, Struct},
    nccl::NameTables,
};
use ncclflow_common::RecordHeader;

use super::{DecodeError, ProxyOpFields, RecordView, api, channel, proxy_op, record};
use crate::wire::{ApiCallSpans, CommunicatorSpans, ConnectorsSpans, ProxyPeerSpans, Span};

/// The fields that every `ncclProxyOp` has, here 8 bytes each, so that they have room for what does not fit.
const FIELDS: [&str; 12] = [
    "opCount",
    "channelId",
    "nsteps",
    "nbytes",
    "chunkSize",
    "sliceSteps",
    "chunkSteps",
    "root",
    "dtype",
    "redOp",
    "pattern",
    "protocol",
];

fn layouts() -> Layouts {
    let field = |offset| Field { offset, size: 8, type_name: "long".into(), array: None, bits: None };
    let member =
        |(at, name): (u64, &&str)| Member { name: (*name).to_owned(), field: field(at * 8), inner: None };
    let members = (0..).zip(&FIELDS).map(member).collect();
    let patterns = Enumeration { size: 4, values: vec![("ncclPatternRing".to_owned(), 0)] };
    Layouts {
        structs: [("ncclProxyOp".to_owned(), Struct { size: 96, members })].into(),
        enums: [("ncclPattern_t".to_owned(), patterns)].into(),
    }
}

/// Decodes an op whose fields are 0 but for this one.
fn op_with(name: &str, value: i64) -> Result<(u32, i32), DecodeError> {
    let mut bytes = [0; 96];
    let at = FIELDS.iter().position(|field| *field == name).unwrap() * 8;
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    let layouts = layouts();
    let fields = ProxyOpFields::find(&layouts, 0).unwrap();
    let op = proxy_op::op(&fields, &NameTables::from_layouts(&layouts), &bytes)?;
    Ok((op.channel, op.root))
}

fn refused<T>(what: &'static str, value: i64) -> Result<T, DecodeError> {
    Err(DecodeError::UnknownValue { what, value })
}

/// A record of these words.
fn record_of(words: &[i64]) -> Vec<u8> {
    let len = size_of::<RecordHeader>() + words.len() * 8;
    let header = RecordHeader { len: u16::try_from(len).unwrap(), ..RecordHeader::default() };
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    header.to_bytes().into_iter().chain(words).collect()
}

/// Returns the place of a word in the record, by its number.
fn word(number: u16) -> Span {
    let at = u16::try_from(size_of::<RecordHeader>()).unwrap() + number * 8;
    Span { at, len: 8, rests_on: 0 }
}

#[test]
fn an_op_of_no_channel_or_root_is_refused() {
    assert_eq!(op_with("channelId", 63), Ok((63, 0)));
    assert_eq!(op_with("root", -1), Ok((0, -1)));
    for no_channel in [1 << 32, -1, i64::from(u32::MAX)] {
        assert_eq!(op_with("channelId", no_channel), refused("channel", no_channel));
    }
    for no_root in [1 << 31, i64::MIN] {
        assert_eq!(op_with("root", no_root), refused("root", no_root));
    }
}

#[test]
fn connectors_of_no_channel_are_refused() {
    let spans = ConnectorsSpans { channel: word(0), connectors: Vec::new() };
    let channel_of = |channel| {
        let bytes = record_of(&[channel]);
        channel::connectors(&spans, &RecordView::new(&bytes).unwrap()).map(|_| ())
    };
    assert_eq!(channel_of(5), Ok(()));
    assert_eq!(channel_of(1 << 32), refused("channel", 1 << 32));
    assert_eq!(record::channel(u64::MAX), refused("channel", -1));
}

#[test]
fn a_peer_with_a_negative_number_of_steps_is_refused() {
    let spans = ProxyPeerSpans {
        comm_pointer: None,
        op_pointer: word(0),
        direction: word(0),
        peer: word(1),
        connection_index: word(0),
        just_inquire: word(0),
        nsteps: word(2),
        connection: word(0),
        proxy_progress: word(0),
        owner: None,
        transport: word(0),
    };
    let steps_of = |nsteps| {
        let bytes = record_of(&[0, 3, nsteps]);
        channel::proxy_peer(&spans, &RecordView::new(&bytes).unwrap()).map(|peer| peer.nsteps)
    };
    assert_eq!(steps_of(4), Ok(Some(4)));
    assert_eq!(steps_of(-4), refused("number of steps", -4));
}

#[test]
fn ranks_that_were_not_read_whole_are_not_nobody() {
    let bytes = record_of(&[-1, 7]);
    let view = RecordView::new(&bytes).unwrap();
    let both = Span { len: 16, ..word(0) };
    assert_eq!(view.ints(&both), Ok([-1, -1, 7]));
    assert_eq!(view.ints::<3>(&word(0)), Err(DecodeError::Short { have: 8, want: 12 }));
}

/// A program gives no communicator: NCCL refuses the call, and that is no fault of the record's. One whose
/// communicator is there and could not be read is none either way.
#[test]
fn a_call_without_a_communicator_is_a_call_and_one_that_cannot_be_read_is_told() {
    let span = |at: u16, rests_on| Span { at, len: 8, rests_on };
    // The communicator's fields rest on the second step, the name on the third.
    let spans = ApiCallSpans {
        comm: CommunicatorSpans {
            pointer: span(48, 0),
            rank: span(56, 0b10),
            n_ranks: span(64, 0b10),
            hash: None,
            launched_per_function: None,
            posted_collectives: None,
        },
        function: span(72, 0),
        name: span(80, 0b100),
        count: span(88, 0),
        datatype: span(72, 0),
        reduction_op: span(72, 0),
        root: span(72, 0),
    };
    let decode = |pointer: u64, n_ranks: u64, faults| {
        let header = RecordHeader { len: 96, faults, ..RecordHeader::default() };
        let mut item = header.to_bytes().to_vec();
        for word in [pointer, 0, n_ranks, 0, 0, 7] {
            item.extend_from_slice(&word.to_le_bytes());
        }
        api::api_call(&spans, &NameTables::default(), &RecordView::new(&item).unwrap())
    };
    assert_eq!(decode(0, 0, 0b110), Ok(None));
    assert_eq!(decode(0x1000, 0, 0b110), Err(DecodeError::Unreadable("a value")));
    let call = decode(0x1000, 2, 0b100).unwrap().unwrap();
    assert_eq!((call.comm.n_ranks, call.count, &*call.name), (2, 7, "unknown"));
}
