use std::fmt;
use std::time::Duration;

use slackwater_base::format_duration;

/// How a policy rates one resident block: why it is kept, or is the next victim.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// How often it was read after it was inserted.
    pub reuses: u32,
    /// Time since it was last read.
    pub age: Duration,
    /// The class it is in, in words.
    pub class: String,
    /// Most hits a second that keeping it can give.
    pub index: f64,
    /// The index of the next victim, with which this one is compared, per byte.
    pub lowest_index: f64,
    /// The chance that it is read again, by time from now.
    pub returns: Vec<ReturnChance>,
    /// The rule that the policy follows now, where it has several.
    pub leader: Option<Leader>,
}

/// The rule that a policy follows, and how it does beside the others in simulated caches.
#[derive(Clone, Debug, PartialEq)]
pub struct Leader {
    /// The name of the rule.
    pub policy: &'static str,
    /// Every rule, the leader among them.
    pub contenders: Vec<Contender>,
    /// How often another rule took the lead.
    pub changes: u64,
}

/// A rule in a simulated cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contender {
    /// The name of the rule.
    pub policy: &'static str,
    /// Hits as a share of the block references that the simulated caches saw lately.
    pub hit_rate: f64,
}

impl Leader {
    /// The leader's hit rate less that of the best other rule; negative while it is not clear enough that the other
    /// one is better.
    #[must_use]
    pub fn lead(&self) -> f64 {
        let (mut own, mut best) = (0.0, 0.0f64);
        for contender in &self.contenders {
            if contender.policy == self.policy {
                own = contender.hit_rate;
            } else {
                best = best.max(contender.hit_rate);
            }
        }
        own - best
    }
}

/// The chance that a block is read again within a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReturnChance {
    /// Time from now.
    pub within: Duration,
    /// From 0 to 1.
    pub chance: f64,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.index > self.lowest_index {
            "kept"
        } else {
            "next to go"
        };
        write!(
            f,
            "{verdict}: {}, last read {} ago",
            self.class,
            format_duration(self.age)
        )?;
        for (at, point) in self.returns.iter().enumerate() {
            let lead = if at == 0 { "; returns with " } else { ", " };
            write!(
                f,
                "{lead}{:.0} % within {}",
                point.chance * 100.0,
                format_duration(point.within)
            )?;
        }
        if let Some(leader) = &self.leader {
            let (policy, lead) = (leader.policy, leader.lead() * 100.0);
            write!(f, "; {policy} leads by {lead:.1} % of the blocks")?;
        }
        let hour = 3600.0;
        write!(
            f,
            "; worth {:.3} hits an hour, what goes next {:.3}",
            self.index * hour,
            self.lowest_index * hour
        )
    }
}

/// What one instance of a policy knows of a block, in terms that another instance of the same policy understands. Tiers
/// pass it to each other when only one of them holds the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Time since it was last read.
    pub age: Duration,
    /// How often it was read after it was inserted.
    pub reuses: u8,
    /// Position in its chain.
    pub position: u32,
    /// The policy's number of the block's class.
    pub class: u8,
    /// The number of the class by which it is kept, which may be that of a descendant.
    pub kept_as: u8,
    /// The policy's number of the features of the request that inserted it.
    pub features: u16,
    /// A number that neighbours of one chain share for some time, within the instance that answered.
    pub chain: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_reads_as_a_sentence() {
        let explanation = Explanation {
            reuses: 2,
            age: Duration::from_secs(90),
            class: "reused twice".to_owned(),
            index: 2e-3,
            lowest_index: 1e-4,
            returns: vec![ReturnChance {
                within: Duration::from_secs(600),
                chance: 0.412,
            }],
            leader: None,
        };
        assert_eq!(
            explanation.to_string(),
            "kept: reused twice, last read 1.50m ago; returns with 41 % within 10m; worth 7.200 hits an hour, \
             what goes next 0.360"
        );
        let contender = |policy, hit_rate| Contender { policy, hit_rate };
        let led = Explanation {
            leader: Some(Leader {
                policy: "lru",
                contenders: vec![contender("gittins", 0.4), contender("lru", 0.425)],
                changes: 1,
            }),
            ..explanation.clone()
        };
        let sentence = led.to_string();
        assert!(
            sentence.contains("within 10m; lru leads by 2.5 % of the blocks; worth"),
            "{sentence}"
        );
        let victim = Explanation {
            index: 1e-4,
            ..explanation
        };
        let sentence = victim.to_string();
        assert!(
            sentence.starts_with("next to go: reused twice"),
            "{sentence}"
        );
    }
}
