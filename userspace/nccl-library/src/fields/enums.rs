//! NCCL's enumerations whose names and numbers are used. `NCCL_PROTO_*` and `NCCL_ALGO_*` are macros: no
//! debugging information has them.

use crate::layouts::Layouts;

/// A value of an enumeration, by both names.
#[derive(Clone, Copy, Debug)]
pub struct EnumeratorRef(&'static str, &'static str);

impl EnumeratorRef {
    /// Finds the value's number, if this library has it.
    pub fn find(self, layouts: &Layouts) -> Option<i64> {
        layouts.enum_value(self.0, self.1)
    }

    /// Finds the number in an enumeration without negative numbers.
    pub fn find_unsigned(self, layouts: &Layouts) -> Option<u64> {
        self.find(layouts).and_then(|value| u64::try_from(value).ok())
    }
}

pub const DATA_TYPE: &str = "ncclDataType_t";
const DEV_RED_OP: &str = "ncclDevRedOp_t";
pub(super) const DEV_WORK_TYPE: &str = "ncclDevWorkType";
pub const FUNC: &str = "ncclFunc_t";
pub const PATTERN: &str = "ncclPattern_t";
pub const PROXY_OP_STATE: &str = "ncclProxyOpState";
pub const RED_OP: &str = "ncclRedOp_t";
pub const RESULT: &str = "ncclResult_t";

/// All enumerations that are asked for, and what ncclflow cannot tell without their names.
pub const ENUMS: &[(&str, &str)] = &[
    (DATA_TYPE, "names of data types"),
    (DEV_RED_OP, "names of reduction operations"),
    (DEV_WORK_TYPE, "the kinds of device work of a plan"),
    (FUNC, "names of collectives"),
    (PATTERN, "names of patterns: ops cannot be expanded to steps"),
    ("ncclProfilerEventState_t", "the meaning of step events"),
    (PROXY_OP_STATE, "the state of ops in flight"),
    (RED_OP, "names of reduction operations"),
    (RESULT, "names of results"),
];

pub const WORK_P2P: EnumeratorRef = EnumeratorRef(DEV_WORK_TYPE, "ncclDevWorkTypeP2p");
pub const WORK_COLL: EnumeratorRef = EnumeratorRef(DEV_WORK_TYPE, "ncclDevWorkTypeColl");
pub const WORK_COLL_REGISTERED: EnumeratorRef = EnumeratorRef(DEV_WORK_TYPE, "ncclDevWorkTypeCollReg");
/// Broadcast; 2.29 and later.
pub const WORK_BROADCAST: EnumeratorRef = EnumeratorRef(DEV_WORK_TYPE, "ncclDevWorkTypeBcast");
/// Sum of values that were multiplied before.
pub const PRE_MUL_SUM: EnumeratorRef = EnumeratorRef(DEV_RED_OP, "ncclDevPreMulSum");
/// An average.
pub const SUM_POST_DIV: EnumeratorRef = EnumeratorRef(DEV_RED_OP, "ncclDevSumPostDiv");
/// Grouped broadcasts: 2.29 and later.
pub const ALL_GATHER_V: EnumeratorRef = EnumeratorRef(FUNC, "ncclFuncAllGatherV");
/// The args are not in use.
pub const OP_NONE: EnumeratorRef = EnumeratorRef(PROXY_OP_STATE, "ncclProxyOpNone");
/// The op has not begun.
pub const OP_READY: EnumeratorRef = EnumeratorRef(PROXY_OP_STATE, "ncclProxyOpReady");
