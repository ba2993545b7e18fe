//! Values and keys of the eBPF object's maps, as aya takes them.

use aya::Pod;
use ncclflow_common::{FetchPlan, ProbeCounters, PythonWalk, ReturnSlots, Seen, SentStack, ShareTaken, Walk};

macro_rules! map_values {
    ($($name:ident($of:ident))*) => {
        $(
            #[doc = concat!("[`", stringify!($of), "`] in a map.")]
            #[derive(Clone, Copy, Debug)]
            #[repr(transparent)]
            pub(super) struct $name(pub(super) $of);

            // SAFETY: repr(C) of integers without padding, so any bytes are a value and every byte is
            // initialised.
            unsafe impl Pod for $name {}
        )*
    };
}

map_values! {
    PlanValue(FetchPlan)
    WalkValue(Walk)
    CountersValue(ProbeCounters)
    PythonValue(PythonWalk)
    SlotsValue(ReturnSlots)
    SentValue(SentStack)
    SeenValue(Seen)
    TakenValue(ShareTaken)
}
