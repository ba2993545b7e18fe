//! The enumerations of NCCL's whose names and numbers are used. `NCCL_PROTO_*` and `NCCL_ALGO_*` are macros:
//! no debugging information has them.

use crate::layouts::Layouts;

/// An enumeration.
#[derive(Clone, Copy, Debug)]
pub struct EnumRef {
    pub name: &'static str,
    /// What ncclflow cannot tell without its names.
    pub lost_without: &'static str,
}

/// A value of an enumeration.
#[derive(Clone, Copy, Debug)]
pub struct EnumeratorRef {
    enumeration: EnumRef,
    name: &'static str,
}

impl EnumRef {
    const fn new(name: &'static str, lost_without: &'static str) -> Self {
        Self { name, lost_without }
    }

    const fn value(self, name: &'static str) -> EnumeratorRef {
        EnumeratorRef { enumeration: self, name }
    }
}

impl EnumeratorRef {
    /// Its number, if this library has it.
    pub fn find(self, layouts: &Layouts) -> Option<i64> {
        layouts.enum_value(self.enumeration.name, self.name)
    }

    /// The same of an enumeration without negative numbers.
    pub fn find_unsigned(self, layouts: &Layouts) -> Option<u64> {
        self.find(layouts).and_then(|value| u64::try_from(value).ok())
    }
}

pub const DATA_TYPE: EnumRef = EnumRef::new("ncclDataType_t", "names of data types");
pub const DEV_RED_OP: EnumRef = EnumRef::new("ncclDevRedOp_t", "names of reduction operations");
pub const DEV_WORK_TYPE: EnumRef = EnumRef::new("ncclDevWorkType", "the kinds of device work of a plan");
pub const FUNC: EnumRef = EnumRef::new("ncclFunc_t", "names of collectives");
pub const PATTERN: EnumRef =
    EnumRef::new("ncclPattern_t", "names of patterns: ops cannot be expanded to steps");
pub const PROFILER_EVENT_STATE: EnumRef =
    EnumRef::new("ncclProfilerEventState_t", "the meaning of step events");
pub const PROXY_OP_STATE: EnumRef = EnumRef::new("ncclProxyOpState", "the state of ops in flight");
pub const RED_OP: EnumRef = EnumRef::new("ncclRedOp_t", "names of reduction operations");
pub const RESULT: EnumRef = EnumRef::new("ncclResult_t", "names of results");

/// All of them.
pub const ENUMS: &[EnumRef] = &[
    DATA_TYPE,
    DEV_RED_OP,
    DEV_WORK_TYPE,
    FUNC,
    PATTERN,
    PROFILER_EVENT_STATE,
    PROXY_OP_STATE,
    RED_OP,
    RESULT,
];

pub const WORK_P2P: EnumeratorRef = DEV_WORK_TYPE.value("ncclDevWorkTypeP2p");
pub const WORK_COLL: EnumeratorRef = DEV_WORK_TYPE.value("ncclDevWorkTypeColl");
pub const WORK_COLL_REGISTERED: EnumeratorRef = DEV_WORK_TYPE.value("ncclDevWorkTypeCollReg");
/// 2.29 and later.
pub const WORK_BROADCAST: EnumeratorRef = DEV_WORK_TYPE.value("ncclDevWorkTypeBcast");
/// A sum of what was multiplied before.
pub const PRE_MUL_SUM: EnumeratorRef = DEV_RED_OP.value("ncclDevPreMulSum");
/// An average.
pub const SUM_POST_DIV: EnumeratorRef = DEV_RED_OP.value("ncclDevSumPostDiv");
/// Grouped broadcasts: 2.29 and later.
pub const ALL_GATHER_V: EnumeratorRef = FUNC.value("ncclFuncAllGatherV");
/// The args are not in use.
pub const OP_NONE: EnumeratorRef = PROXY_OP_STATE.value("ncclProxyOpNone");
/// The op has not begun.
pub const OP_READY: EnumeratorRef = PROXY_OP_STATE.value("ncclProxyOpReady");
