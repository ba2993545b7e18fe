//! Who is who: the job, user and container of a process, and the GPU, node and name of a communicator's rank.
//!
//! Probes give a rank of a communicator and a process ID. People ask for the rank in the job, whose job it is
//! and which GPU. These facts stand in a recording, so that a reader on another machine knows them. All of it
//! is a tenant's: it is bounded and cleaned, and nothing is decided by it but whose a control group is, which
//! goes by names that root gave.

mod container;
mod environment;
mod facts;
mod job;
mod same_job;

pub use container::{CgroupHolder, Container, cgroup_names, cgroup_path, hierarchies};
pub use environment::{JobVariable, Variables};
pub use facts::{CommunicatorFacts, ProcessFacts, SessionUser, Whose};
pub use job::{Job, JobSource, Largest};
pub use same_job::{JobMember, job_names};
