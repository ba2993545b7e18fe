//! Launches without proxy ops: kernels on symmetric memory (2.27 and later), collectives by copy engines
//! (2.28 and later), one-sided calls (2.29 and later).

use serde::{Deserialize, Serialize};

use super::{Decoder, RecordView, Result, plan_fields::LaunchFields, record::if_readable};
use crate::{schema::LaunchKind, wire::LaunchSpans};
use nccl_library::{
    fields::BitField,
    nccl::{Name, datatype_bytes},
    symbols::SymmetricKernel,
};

/// Launch whose plan has no proxy ops. All of it is *planned*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub kind: LaunchKind,
    /// Name of a kernel on symmetric memory, if it is known.
    pub kernel: Option<Name>,
    /// Calls that the launch serves; `None`: not known.
    pub calls: Option<u64>,
    /// The call, if it is the only one. Of a launch of several, function, type and reduction are of all of
    /// them.
    pub call: LaunchedCall,
    /// Its calls are seen by another probe.
    pub elsewhere: bool,
}

/// A call that a launch serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchedCall {
    pub function: Option<Name>,
    pub count: Option<u64>,
    pub datatype: Option<Name>,
    pub red_op: Option<Name>,
    pub bytes: Option<u64>,
    /// Root of a collective, peer of a one-sided call; -1: none.
    pub root: i32,
    pub send: LaunchedBuffer,
    pub recv: LaunchedBuffer,
    /// First ranks that a one-sided call waits for.
    pub waits_for: Vec<i32>,
}

/// A buffer by its address, or by its window and the offset in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchedBuffer {
    pub address: Option<u64>,
    pub window: Option<u64>,
    pub offset: Option<u64>,
}

/// A one-sided call, and whether the CPU's proxy makes it (or a copy engine).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneSidedCall {
    pub by_proxy: bool,
    pub call: LaunchedCall,
}

/// A kernel on symmetric memory, by its distance from a function that plans name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaunchKernel {
    from_reclaim: i64,
    name: Name,
    function: Name,
    reduction: Option<(Name, Name)>,
}

impl LaunchKernel {
    /// Describes the library's kernels, in the order of their addresses.
    pub fn all(kernels: &[SymmetricKernel]) -> Vec<Self> {
        let mut all: Vec<Self> = kernels
            .iter()
            .map(|kernel| Self {
                from_reclaim: kernel.from_reclaim,
                name: kernel.name.clone(),
                function: kernel.function().into(),
                reduction: kernel.reduction().map(|(op, element)| (op.into(), element.into())),
            })
            .collect();
        all.sort_by_key(|kernel| kernel.from_reclaim);
        all
    }
}

/// Decodes the arguments of a launch; `None` if the plan has proxy ops, or none of the flags.
pub(super) fn launch(
    decoder: &Decoder,
    spans: &LaunchSpans,
    record: &RecordView<'_>,
) -> Result<Option<Launch>> {
    let flag = |at: usize| -> Result<bool> {
        let span = spans.flags.get(at).copied().flatten();
        Ok(record.optional(span.as_ref())?.is_some_and(|flag| flag != 0))
    };
    let kind = if flag(0)? {
        LaunchKind::Symmetric
    } else if flag(1)? {
        LaunchKind::CopyEngine
    } else if flag(2)? {
        LaunchKind::OneSided
    } else {
        return Ok(None);
    };
    let args = if_readable(record.bytes(&spans.args))?.unwrap_or_default();
    let mut launch = Launch {
        kind,
        kernel: None,
        calls: None,
        call: LaunchedCall { root: -1, ..LaunchedCall::default() },
        elsewhere: kind == LaunchKind::OneSided && spans.one_sided_elsewhere,
    };
    let Some(fields) = decoder.plan_fields.as_ref().and_then(|fields| fields.launch.as_ref()) else {
        return Ok(Some(launch));
    };
    match kind {
        LaunchKind::Symmetric => symmetric(decoder, fields, spans, record, args, &mut launch),
        LaunchKind::CopyEngine => {
            launch.calls = Some(1);
            launch.call = copied(decoder, fields, args).unwrap_or(launch.call);
        }
        LaunchKind::Grouped
        | LaunchKind::OneSided
        | LaunchKind::OneSidedByProxy
        | LaunchKind::OneSidedByCopy => {
            let number = |field: Option<BitField>| field.and_then(|field| field.of(args));
            launch.calls = number(fields.rma.map(|rma| rma.n_tasks));
            launch.call.function =
                number(fields.rma.map(|rma| rma.func)).and_then(|func| function(decoder, func));
        }
    }
    Ok(Some(launch))
}

fn function(decoder: &Decoder, number: u64) -> Option<Name> {
    decoder.names.function(number.cast_signed()).cloned()
}

fn symmetric(
    decoder: &Decoder,
    fields: &LaunchFields,
    spans: &LaunchSpans,
    record: &RecordView<'_>,
    args: &[u8],
    launch: &mut Launch,
) {
    let word = |span| record.unsigned(span).ok();
    let from_reclaim = word(&spans.kernel)
        .zip(word(&spans.reclaim))
        .map(|(kernel, reclaim)| kernel.wrapping_sub(reclaim).cast_signed());
    let kernel = from_reclaim.and_then(|at| {
        let kernels = &decoder.symmetric_kernels;
        kernels.get(kernels.binary_search_by_key(&at, |kernel| kernel.from_reclaim).ok()?)
    });
    let call = &mut launch.call;
    if let Some(kernel) = kernel {
        launch.kernel = Some(kernel.name.clone());
        call.function = Some(kernel.function.clone());
        if let Some((red_op, element)) = &kernel.reduction {
            (call.red_op, call.datatype) = (Some(red_op.clone()), Some(element.clone()));
        } else if kernel.function.as_str() == "AllGather" {
            // NCCL counts bytes here (src/enqueue.cc, collTaskAppend).
            call.datatype = Some("int8".into());
        }
    }
    let size = word(&spans.args_size);
    launch.calls = match (&fields.symk_args, size) {
        (Some(symk), Some(size)) => {
            spans.n_channels.as_ref().and_then(word).and_then(|n| symk.calls(size, n))
        }
        // 2.27: one struct for one call.
        (None, Some(size)) => (fields.sym_args_size == Some(size)).then_some(1),
        (_, None) => None,
    };
    if launch.calls != Some(1) {
        return;
    }
    let of = |field: Option<BitField>| field.and_then(|field| field.of(args));
    if let Some(work) = &fields.symk {
        call.count = of(Some(work.count));
        call.root = work.root.int_of(args).unwrap_or(-1);
        call.send = in_window(of(Some(work.send_window)), of(Some(work.send_offset)));
        call.recv = in_window(of(Some(work.recv_window)), of(Some(work.recv_offset)));
    } else if let Some(work) = &fields.sym {
        call.count = of(Some(work.count));
        call.root = work.root.int_of(args).unwrap_or(-1);
        call.send.address = of(Some(work.send_buffer));
        call.recv.address = of(Some(work.recv_buffer));
    }
    call.bytes = bytes(call.count, call.datatype.as_ref());
}

/// A buffer of a kernel on symmetric memory: without a window the offset is the address.
fn in_window(window: Option<u64>, offset: Option<u64>) -> LaunchedBuffer {
    match window {
        Some(0) => LaunchedBuffer { address: offset, ..LaunchedBuffer::default() },
        window => LaunchedBuffer { address: None, window, offset },
    }
}

fn bytes(count: Option<u64>, datatype: Option<&Name>) -> Option<u64> {
    count?.checked_mul(datatype_bytes(datatype?)?)
}

fn copied(decoder: &Decoder, fields: &LaunchFields, args: &[u8]) -> Option<LaunchedCall> {
    let of = fields.copy.as_ref()?;
    let count = of.count.of(args)?;
    let number = |field: Option<BitField>| field.and_then(|field| field.of(args));
    let buffer = |address: BitField, window: BitField| LaunchedBuffer {
        address: address.of(args),
        window: window.of(args).filter(|window| *window != 0),
        offset: None,
    };
    Some(LaunchedCall {
        function: function(decoder, of.func.of(args)?),
        count: Some(count),
        datatype: number(of.datatype)
            .and_then(|number| decoder.names.datatype(number.cast_signed()).cloned()),
        bytes: count.checked_mul(of.element_size.of(args)?),
        root: of.root.int_of(args)?,
        send: buffer(of.send_buffer, of.send_window),
        recv: buffer(of.recv_buffer, of.recv_window),
        ..LaunchedCall::default()
    })
}

/// Decodes an `ncclTaskRma`. `ranks`: the first ranks that it waits for, as far as they were read.
pub(super) fn one_sided(
    decoder: &Decoder,
    fields: &LaunchFields,
    by_proxy: bool,
    bytes: &[u8],
    ranks: &[u8],
) -> Option<OneSidedCall> {
    let of = fields.task.as_ref()?;
    let function = function(decoder, of.func.of(bytes)?);
    let waits = function.as_deref() == Some("WaitSignal");
    let puts = function.as_deref() == Some("PutSignal");
    let buffer = |address: Option<BitField>, window: BitField, offset: BitField| LaunchedBuffer {
        address: address.and_then(|field| field.of(bytes)).filter(|address| *address != 0),
        window: window.of(bytes).filter(|window| *window != 0),
        offset: offset.of(bytes),
    };
    let n_ranks = usize::try_from(of.n_peers.of(bytes)?).unwrap_or(usize::MAX);
    let (words, _) = ranks.as_chunks::<4>();
    Some(OneSidedCall {
        by_proxy,
        call: LaunchedCall {
            function,
            count: of.count.of(bytes).filter(|_| puts),
            datatype: decoder.names.datatype(of.datatype.of(bytes)?.cast_signed()).filter(|_| puts).cloned(),
            red_op: None,
            bytes: Some(if puts { of.bytes.of(bytes)? } else { 0 }),
            root: if waits { -1 } else { of.peer.int_of(bytes)? },
            send: if puts {
                buffer(Some(of.source), of.source_window, of.source_offset)
            } else {
                LaunchedBuffer::default()
            },
            recv: if puts { buffer(None, of.peer_window, of.peer_offset) } else { LaunchedBuffer::default() },
            waits_for: if waits {
                words.iter().take(n_ranks).map(|word| i32::from_le_bytes(*word)).collect()
            } else {
                Vec::new()
            },
        },
    })
}
