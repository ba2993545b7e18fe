//! Makes flows of events: puts calls together, joins plan and post pass, numbers ops, lays messages out to
//! rows.
//!
//! Pure and synchronous: time enters only with the events, so a live run and a replay give the same.

mod api;
mod api_returns;
mod bytes;
mod call;
mod communicator;
pub(crate) mod counters;
mod execution;
mod flow;
mod graphs;
mod joined_calls;
mod measured;
mod message;
mod message_sums;
mod node;
mod plan;
mod post_match;
mod proxy_ranks;
mod rows;
mod sequence;
mod session;
mod sizes;
mod transfers;

#[cfg(test)]
mod tests;

pub use api::{ApiOutput, ApiRecord, ApiSession};
pub use api_returns::{OtherCall, Returned};
pub use call::{CallAssembler, ProxyCall};
pub use communicator::CommKey;
pub use counters::{GraphCounters, LeftOut, ModelCounters, PlanCounters};
pub use flow::{FlowCommunicator, FlowRecord, PeerFlow};
pub use joined_calls::JoinedCalls;
pub use measured::Sampling;
pub use message::{Measured, Message};
pub use node::Node;
pub use proxy_ranks::{CommunicatorRank, Owner, ProxyRanks};
pub use rows::{Rows, other_call_row};
pub use session::Session;
