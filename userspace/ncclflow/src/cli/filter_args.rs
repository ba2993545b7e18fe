//! Options that choose processes of the node.

use clap::Args;

use inspect::process::Filter;

/// Heading in `--help`. Not as `next_help_heading`, which would also apply to what follows in the commands.
const HEADING: &str = "Filters";

/// Filters: one of each given kind must fit. Values can be given as a comma list, or by repeating the option.
#[derive(Clone, Debug, Default, Args)]
pub struct FilterArgs {
    /// Only processes of these users (name or number)
    #[arg(help_heading = HEADING, long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    /// Only processes whose control group's path contains TEXT
    #[arg(help_heading = HEADING, long, value_name = "TEXT")]
    pub cgroup: Vec<String>,

    /// Only processes of the containers whose id, runtime:id or pod UID begins so
    #[arg(help_heading = HEADING, long, value_name = "ID", value_delimiter = ',')]
    pub container: Vec<String>,

    /// Only processes whose name is TEXT, or whose command line contains it
    #[arg(help_heading = HEADING, long, visible_alias = "command", value_name = "TEXT")]
    pub comm: Vec<String>,

    /// Only processes that use this NCCL: 2.27, or 2.27.5
    #[arg(help_heading = HEADING, long, value_name = "VERSION", value_delimiter = ',')]
    pub nccl_version: Vec<String>,
}

impl FilterArgs {
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::cli::args::Cli;

    /// A heading given to a whole group of options would also apply to those that follow in the command.
    #[test]
    fn options_are_listed_under_the_heading_of_their_own_group() {
        let cli = Cli::command();
        let below = |command: &str, heading: &str| -> Vec<String> {
            let arguments = cli.find_subcommand(command).unwrap().get_arguments();
            let arguments = arguments.filter(|argument| argument.get_help_heading() == Some(heading));
            arguments.map(|argument| argument.get_id().to_string()).collect()
        };
        for command in ["ps", "record", "top"] {
            let filters = ["user", "cgroup", "container", "comm", "nccl_version"];
            assert_eq!(below(command, super::HEADING), filters, "{command}");
        }
        let windows = ["window_flag", "window_max_ops", "window_max_secs", "window_iterations", "rotate"];
        assert_eq!(below("record", "Windows"), windows);
        assert_eq!(below("record", "Disk"), ["files", "files_limit", "max_size", "max_age", "compress"]);
    }
}
