//! Probes: where to attach, and what to copy there.

mod api_probes;
mod argument_registers;
mod connector;
mod error;
mod lookup;
mod op_probes;
mod op_work;
mod plan_builder;
mod send_sizes;
mod set;
mod short_walk;
mod step_places;
mod step_probes;
mod walk_probes;
mod walk_rows;

pub use error::PlanError;
pub use plan_builder::{PlanBuilder, Slot};
pub use set::{
    CallSource, Level, MissingProbe, Part, Probe, ProbePlace, ProbeSet, ProbeStrategy, WalkProgram,
    add_api_calls, add_api_returns, compile, take_stacks,
};
pub use step_places::{StepDetail, add_steps};
