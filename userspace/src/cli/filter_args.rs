//! Which processes of the node are wanted.

use clap::Args;

use crate::target::Filter;

/// Of each kind that is given, one must fit; values can be given as a comma list, or by giving the option again.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Filters")]
pub struct FilterArgs {
    /// Only processes of these users (name or number)
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    /// Only processes whose control group's path contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub cgroup: Vec<String>,

    /// Only processes of the containers whose id, runtime:id or pod UID begins so
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub container: Vec<String>,

    /// Only processes whose name is TEXT, or whose command line contains it
    #[arg(long, visible_alias = "command", value_name = "TEXT")]
    pub comm: Vec<String>,

    /// Only processes that use this NCCL: 2.27, or 2.27.5
    #[arg(long, value_name = "VERSION", value_delimiter = ',')]
    pub nccl_version: Vec<String>,
}

impl FilterArgs {
    /// As the library takes it.
    pub fn filter(&self) -> Filter {
        Filter {
            users: self.user.clone(),
            cgroups: self.cgroup.clone(),
            containers: self.container.clone(),
            commands: self.comm.clone(),
            nccl_versions: self.nccl_version.clone(),
        }
    }
}
