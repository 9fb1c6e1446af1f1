use super::{Config, Source};

/// What a process is, to which some of the options are of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It uses a store of its own.
    Store,
    /// It serves a store to other processes.
    Server,
    /// It is the master of a pool.
    Master,
    /// It lends memory and an SSD to a pool.
    Node,
}

impl Role {
    /// Whether an option has an effect in such a process.
    #[must_use]
    pub fn uses(self, key: &str) -> bool {
        let replicates = key.starts_with("replication.");
        let evicts = EVICTS.contains(&key);
        let decides = replicates
            || key.starts_with("evict.")
            || key.starts_with("promotion.")
            || DECIDES.contains(&key);
        let calls = key.starts_with("views.") || CALLS.contains(&key);
        match self {
            // There is no other node for a further replica.
            Self::Store => !replicates,
            Self::Server => !replicates && !calls,
            Self::Master => decides || EVERYWHERE.contains(&key),
            Self::Node => (!decides && !calls) || evicts,
        }
    }

    /// Why an option is of no use in such a process, and where it is of use; `None` where it has an effect.
    #[must_use]
    pub fn refusal(self, key: &str) -> Option<String> {
        if self.uses(key) {
            return None;
        }
        let whose = if Self::Master.uses(key) {
            "it is the master's: give it to `slackwater master`"
        } else if Self::Node.uses(key) {
            "it is a node's: give it to `slackwater node`"
        } else {
            "it is for programs that open a store themselves"
        };
        Some(format!("has no effect in {}: {whose}", self.name()))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Store => "a store of one process",
            Self::Server => "a served store",
            Self::Master => "a master",
            Self::Node => "a node",
        }
    }
}

impl Config {
    /// Options that a file or the environment sets and that have no effect in such a process. Several processes may share both, so
    /// this is no mistake; a flag is.
    #[must_use]
    pub fn warnings_in(&self, role: Role) -> Vec<String> {
        let warning = |(index, spec): (usize, &super::OptionSpec)| {
            let place = match self.sources.get(index) {
                Source::Default | Source::Flag(_) => return None,
                // As variables they are read by every engine and message layer, and by all that copies.
                Source::Env(_) if ["wait", "isa"].contains(&spec.key) => return None,
                place => place,
            };
            let refusal = role.refusal(spec.key)?;
            Some(format!("{place}: `{}` {refusal}", spec.key))
        };
        let options = Config::OPTIONS.iter().enumerate();
        options.filter_map(warning).collect()
    }
}

/// Options of a master, beside tables of them.
const DECIDES: &[&str] = &[
    "policy",
    "offload",
    "tenants",
    "lease_ttl",
    "soft_pin_ttl",
    "put_wait",
    "restart_wait",
];
/// Options of a master that a node may have of its own, for what it lends.
const EVICTS: &[&str] = &["evict.high", "evict.low", "evict.ssd_high", "evict.ssd_low"];
/// Options for calls within the process, beside views. Memory that is shared with other processes is of ordinary pages.
const CALLS: &[&str] = &["copy_threads", "huge_pages"];
/// Options of every process.
const EVERYWHERE: &[&str] = &["log", "log_format", "deadline"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_of_use_somewhere_and_its_refusal_says_where() {
        let check = |key: &str, used: [bool; 4], whose: &str| {
            let roles = [Role::Store, Role::Server, Role::Master, Role::Node];
            for (role, used) in roles.into_iter().zip(used) {
                let refusal = role.refusal(key);
                assert_eq!(refusal.is_none(), used, "{role:?} {key}");
                let right = refusal.is_none_or(|refusal| refusal.ends_with(whose));
                assert!(right, "{role:?} {key}");
            }
        };
        let (master, node) = (
            "give it to `slackwater master`",
            "give it to `slackwater node`",
        );
        for key in [
            "policy",
            "offload",
            "lease_ttl",
            "evict.block_tokens",
            "promotion.rate",
        ] {
            check(key, [true, true, true, false], master);
        }
        for key in EVICTS {
            check(key, [true; 4], "");
        }
        check("replication.mode", [false, false, true, false], master);
        for key in [
            "memory",
            "ssd",
            "dir",
            "io_depth",
            "pace.write_share",
            "isa",
            "wait",
        ] {
            check(key, [true, true, false, true], node);
        }
        for key in ["views.limit", "huge_pages", "copy_threads"] {
            check(
                key,
                [true, false, false, false],
                "that open a store themselves",
            );
        }
        for key in EVERYWHERE {
            check(key, [true; 4], "");
        }
        for key in DECIDES.iter().chain(EVICTS).chain(CALLS).chain(EVERYWHERE) {
            assert!(Config::option(key).is_some(), "{key}");
        }
    }

    /// A master took `memory` and a node `policy` out of a file or the environment, and said nothing.
    #[test]
    fn what_a_file_or_the_environment_sets_without_effect_is_a_warning_with_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kv.toml");
        std::fs::write(
            &path,
            "memory = '2GiB'\nlog = 'warn'\n[evict]\nhigh = '99%'\nblock_tokens = 64\n",
        )
        .unwrap();
        let env = [
            ("SLACKWATER_SSD", "0"),
            ("SLACKWATER_WAIT", "park"),
            ("SLACKWATER_POLICY", "lru"),
        ];
        let env = env.map(|(name, value)| (name.into(), value.into()));
        let config = Config::load(Some(&path), env.into_iter(), &[]).unwrap();
        let file = path.display();
        let check = |role: Role, expected: &[String]| {
            assert_eq!(config.warnings_in(role), expected, "{role:?}");
        };
        let (to_master, to_node) = (
            "has no effect in a node: it is the master's: give it to `slackwater master`",
            "has no effect in a master: it is a node's: give it to `slackwater node`",
        );
        check(
            Role::Master,
            &[
                format!("{file}:1: `memory` {to_node}"),
                format!("SLACKWATER_SSD: `ssd` {to_node}"),
            ],
        );
        check(
            Role::Node,
            &[
                format!("SLACKWATER_POLICY: `policy` {to_master}"),
                format!("{file}:5: `evict.block_tokens` {to_master}"),
            ],
        );
        check(Role::Store, &[]);
        check(Role::Server, &[]);
    }
}
