//! Records of CUDA graphs: functions of the driver, and the one by which NCCL ties plans to a graph.

use serde::{Deserialize, Serialize};

use super::Span;

/// What the probed function does with a graph or an executable of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GraphMoment {
    /// `ncclCudaGraphAddDestructor`: plans that are about to be launched are captured by a graph.
    Captured,
    /// `cuStreamBeginCapture`: a new graph captures what a stream is given.
    CaptureBegun,
    /// `cuStreamBeginCaptureToGraph`: the graph is there already.
    CaptureBegunInto,
    /// `cuStreamEndCapture`.
    CaptureEnded,
    /// `cuGraphInstantiate` and its variants: an executable is made of a graph.
    Instantiated,
    /// `cuGraphExecUpdate`: an executable gets the content of another graph.
    Updated,
    /// `cuGraphLaunch`.
    Launched,
    /// `cuGraphExecDestroy`.
    ExecDestroyed,
    /// `cuGraphDestroy`.
    GraphDestroyed,
}

/// Places of the fields in the record of a function that deals with CUDA graphs, at its entry. What a function
/// does not have is `None`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GraphSpans {
    pub moment: GraphMoment,
    /// `CUstream` whose capture begins or ends.
    #[serde(default)]
    pub stream: Option<Span>,
    /// `CUgraph`.
    pub graph: Option<Span>,
    /// Number of the capture.
    pub capture: Option<Span>,
    /// `CUgraphExec`.
    pub exec: Option<Span>,
    /// First `ncclKernelPlan` that the graph captures; it can be another object of NCCL's.
    pub plan: Option<Span>,
    /// `ncclKernelPlan.comm` of it.
    pub comm: Option<Span>,
    /// Address at which the function leaves its answer, and the word there before: the executable, the graph that
    /// was captured, or the result of an update.
    pub answer: Option<[Span; 2]>,
    /// The last such address of this thread, and of any thread of the process, and the words there now. An
    /// address is told once; 0: there is none.
    pub answered: Option<[[Span; 2]; 2]>,
}
