//! Names of the numbers of one library's enums.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{Name, Pattern};
use crate::layouts::Layouts;

/// Enums of the traced library whose numbers are in records.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NameTables {
    patterns: Vec<(i64, Pattern)>,
    functions: Vec<(i64, Name)>,
    datatypes: Vec<(i64, Name)>,
    reduction_ops: Vec<(i64, Name)>,
    step_states: Vec<(i64, StepState)>,
    #[serde(default)]
    results: Vec<(i64, Name)>,
}

// Enums of nccl.h by their numbers, which programs are compiled with: versions add names at the end and
// change none (2.16 to 2.32; tests/api_functions.rs compares them with the libraries').

/// `ncclDataType_t`
const DATATYPES: &str =
    "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 float8e4m3 float8e5m2";
/// `ncclRedOp_t`
const REDUCTION_OPS: &str = "sum prod max min avg";
/// `ncclResult_t`
const RESULTS: &str = "ncclSuccess ncclUnhandledCudaError ncclSystemError ncclInternalError \
                       ncclInvalidArgument ncclInvalidUsage ncclRemoteError ncclInProgress ncclTimeout";

/// States of a message in the network proxy: `ncclProfilerEventState_t`, 2.23 and later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepState {
    /// The GPU has not filled the slot.
    SendGpuWait,
    /// The network does not take it yet; 2.27 and later.
    SendPeerWait,
    /// The network has it.
    SendWait,
    /// The network was asked for it.
    RecvWait,
    /// The network has delivered it.
    RecvFlushWait,
    /// The GPU is given it.
    RecvGpuWait,
}

impl StepState {
    fn from_enumerator(name: &str) -> Option<Self> {
        Some(match name.strip_prefix("ncclProfilerProxyStep")? {
            "SendGPUWait" => Self::SendGpuWait,
            "SendPeerWait_v4" | "SendPeerWait" => Self::SendPeerWait,
            "SendWait" => Self::SendWait,
            "RecvWait" => Self::RecvWait,
            "RecvFlushWait" => Self::RecvFlushWait,
            "RecvGPUWait" => Self::RecvGpuWait,
            _ => return None,
        })
    }
}

impl NameTables {
    /// Takes the names of the library's own enums. An enum that is missing leaves its names out, not wrong.
    pub fn from_layouts(layouts: &Layouts) -> Self {
        let names = |enumeration: &str, prefix: &str, spelled: fn(&str) -> String| {
            let mut names: Vec<(i64, Name)> = Vec::new();
            for (name, value) in enumerators(layouts, enumeration) {
                // Aliases follow the proper name (ncclFloat16 = 6, ncclHalf = 6): the first wins. Markers
                // such as ncclNumFuncs carry the number after the last, ncclMaxRedOp the largest.
                let Some(short) = name.strip_prefix(prefix) else { continue };
                if short.starts_with("Num")
                    || short == "MaxRedOp"
                    || names.iter().any(|(known, _)| *known == value)
                {
                    continue;
                }
                names.push((value, Name::from(spelled(short).as_str())));
            }
            names
        };
        Self {
            patterns: enumerators(layouts, "ncclPattern_t")
                .filter_map(|(name, value)| Some((value, Pattern::from_enumerator(name)?)))
                .collect(),
            step_states: enumerators(layouts, "ncclProfilerEventState_t")
                .filter_map(|(name, value)| Some((value, StepState::from_enumerator(name)?)))
                .collect(),
            results: enumerators(layouts, "ncclResult_t")
                .filter(|(name, _)| !name.starts_with("ncclNum"))
                .map(|(name, value)| (value, Name::from(name)))
                .collect(),
            functions: names("ncclFunc_t", "ncclFunc", str::to_owned),
            datatypes: names("ncclDataType_t", "nccl", str::to_lowercase),
            reduction_ops: names("ncclRedOp_t", "nccl", str::to_lowercase),
        }
    }

    /// Adds the names of nccl.h for the enums of the API that the library does not state.
    #[must_use]
    pub fn or_as_declared(mut self) -> Self {
        for (names, of_header) in [
            (&mut self.datatypes, DATATYPES),
            (&mut self.reduction_ops, REDUCTION_OPS),
            (&mut self.results, RESULTS),
        ] {
            if names.is_empty() {
                *names = (0..).zip(of_header.split_whitespace().map(Name::from)).collect();
            }
        }
        self
    }

    pub fn pattern(&self, number: i64) -> Option<Pattern> {
        find(&self.patterns, number).copied()
    }

    pub fn step_state(&self, number: i64) -> Option<StepState> {
        find(&self.step_states, number).copied()
    }

    /// Returns the library's number of a state.
    pub fn step_state_number(&self, state: StepState) -> Option<i64> {
        self.step_states.iter().find(|(_, known)| *known == state).map(|(value, _)| *value)
    }

    /// Tells whether `ncclProxySubArgs.transSize` is one message's size. Up to 2.26 it is a sum over messages
    /// and ops that is never reset. From 2.27 on, which brought the state `SendPeerWait`, it is set for each
    /// message.
    pub fn step_size_is_per_message(&self) -> bool {
        self.step_states.iter().any(|(_, state)| *state == StepState::SendPeerWait)
    }

    /// Name of a collective or p2p function: `AllReduce`, `Send` …
    pub fn function(&self, number: i64) -> Option<&Name> {
        find(&self.functions, number)
    }

    /// Returns a function's name that a record carries as text: shared, if the library's enum has it.
    pub fn function_named(&self, text: &str) -> Name {
        let known = self.functions.iter().find(|(_, name)| *name == text);
        known.map_or_else(|| Name::from(text), |(_, name)| name.clone())
    }

    /// `ncclSuccess`, `ncclInvalidArgument` …: as nccl.h has it.
    pub fn result(&self, number: i64) -> Option<&Name> {
        find(&self.results, number)
    }

    /// `float32`, `int8` …
    pub fn datatype(&self, number: i64) -> Option<&Name> {
        find(&self.datatypes, number)
    }

    /// Tells whether the library's enum of reduction operators is known.
    pub fn has_reduction_ops(&self) -> bool {
        !self.reduction_ops.is_empty()
    }

    /// `sum`, `prod` … Numbers past the enum are operators that the user made.
    pub fn reduction_op(&self, number: i64) -> Option<&Name> {
        find(&self.reduction_ops, number)
    }
}

fn enumerators<'a>(layouts: &'a Layouts, enumeration: &str) -> impl Iterator<Item = (&'a str, i64)> {
    let found = layouts.enums.get(enumeration);
    found.into_iter().flat_map(|found| found.values.iter().map(|(name, value)| (name.as_str(), *value)))
}

fn find<T>(names: &[(i64, T)], number: i64) -> Option<&T> {
    names.iter().find(|(value, _)| *value == number).map(|(_, name)| name)
}

/// Names of every send and receive, the same in all libraries.
#[derive(Debug)]
pub struct P2pNames {
    pub send: Name,
    pub recv: Name,
    /// Data type of the elements as NCCL moves them.
    pub datatype: Name,
    /// Operator that NCCL sets where nothing is reduced.
    pub reduction_op: Name,
}

/// The only [`P2pNames`], shared by all ops that are a send or a receive.
pub static P2P_NAMES: LazyLock<P2pNames> = LazyLock::new(|| P2pNames {
    send: Name::from("Send"),
    recv: Name::from("Recv"),
    datatype: Name::from("int8"),
    reduction_op: Name::from("sum"),
});

/// Returns the bytes of one element of a data type, by its name.
pub fn datatype_bytes(name: &str) -> Option<u64> {
    Some(match name {
        "int8" | "uint8" | "char" | "float8e4m3" | "float8e5m2" => 1,
        "float16" | "bfloat16" | "half" => 2,
        "int32" | "uint32" | "float32" | "int" | "float" => 4,
        "int64" | "uint64" | "float64" | "double" => 8,
        _ => return None,
    })
}
