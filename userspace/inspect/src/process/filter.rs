//! Choice of processes by user, control group, container, command and version.

use super::description::Description;
use nccl_library::nccl::NcclVersion;

/// Choice of processes. At least one value of each kind that is given must match. An empty filter admits
/// every process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Names or numbers of users.
    pub users: Vec<String>,
    /// Parts of the path of the control group.
    pub cgroups: Vec<String>,
    /// Beginnings of a container's id, of `runtime:id`, or of its pod's UID.
    pub containers: Vec<String>,
    /// The kernel's short name, or a part of the command line.
    pub commands: Vec<String>,
    /// Versions, as precise as wanted: `2`, `2.27`, `2.27.5`.
    pub nccl_versions: Vec<String>,
}

impl Filter {
    /// Tells whether nothing is asked for, so that every process is wanted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Tells whether the process is wanted, whatever its NCCL is.
    pub fn admits(&self, name: &str, process: &Description) -> bool {
        let container = |wanted: &String| {
            process.container.as_ref().is_some_and(|container| {
                let full = format!("{}:{}", container.runtime, container.id);
                container.id.starts_with(wanted)
                    || full.starts_with(wanted)
                    || container.pod.as_ref().is_some_and(|pod| pod.starts_with(wanted))
            })
        };
        any(&self.users, |user| process.user == *user || process.uid.to_string() == *user)
            && any(&self.cgroups, |part| {
                process.cgroup.as_ref().is_some_and(|path| path.contains(part.as_str()))
            })
            && any(&self.containers, container)
            && any(&self.commands, |text| name == text || process.command.contains(text.as_str()))
    }

    /// Tells whether a library of this version is wanted. A library of unknown version is wanted only if no
    /// version is asked for.
    pub fn admits_version(&self, version: Option<NcclVersion>) -> bool {
        any(&self.nccl_versions, |wanted| {
            version.is_some_and(|version| {
                let version = version.to_string();
                version
                    .strip_prefix(wanted.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        })
    }
}

fn any(wanted: &[String], fits: impl Fn(&String) -> bool) -> bool {
    wanted.is_empty() || wanted.iter().any(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::identity::Container;

    fn described() -> Description {
        Description {
            uid: 1000,
            user: "ann".to_owned(),
            command: "python3 -u train.py --lr 1".to_owned(),
            cgroup: Some("/kubepods/poda/b".to_owned()),
            container: Some(Container { runtime: "docker".to_owned(), id: "abcdef".to_owned(), pod: None }),
            ..Description::default()
        }
    }

    #[test]
    fn of_each_kind_one_must_fit() {
        let filter = |set: &dyn Fn(&mut Filter)| {
            let mut filter = Filter::default();
            set(&mut filter);
            filter.admits("pt_main_thread", &described())
        };
        assert!(filter(&|_| {}));
        assert!(filter(&|f| f.users = vec!["bob".into(), "ann".into()]));
        assert!(filter(&|f| f.users = vec!["1000".into()]));
        assert!(!filter(&|f| f.users = vec!["an".into()]));
        assert!(filter(&|f| f.commands = vec!["pt_main_thread".into()]));
        assert!(filter(&|f| f.commands = vec!["train.py".into()]));
        assert!(!filter(&|f| f.commands = vec!["pt_main".into()]));
        assert!(filter(&|f| f.containers = vec!["abc".into()]));
        assert!(filter(&|f| f.containers = vec!["docker:abcd".into()]));
        assert!(!filter(&|f| f.containers = vec!["bcd".into()]));
        assert!(filter(&|f| f.cgroups = vec!["kubepods".into()]));
        assert!(!filter(&|f| {
            f.cgroups = vec!["kubepods".into()];
            f.users = vec!["root".into()];
        }));
    }

    #[test]
    fn versions_are_compared_by_their_parts() {
        let filter = Filter { nccl_versions: vec!["2.2".into(), "2.27".into()], ..Filter::default() };
        let version = |minor, patch| Some(NcclVersion { major: 2, minor, patch });
        assert!(filter.admits_version(version(27, 5)) && filter.admits_version(version(2, 0)));
        assert!(!filter.admits_version(version(21, 5)) && !filter.admits_version(None));
        assert!(Filter::default().admits_version(None));
    }
}
