use std::fmt;
use std::time::Duration;

use slackwater_base::format_duration;

/// What a policy thinks of one resident block: why it is kept, or will go next.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// How often it was read after it came.
    pub reuses: u32,
    /// Time since it was last read.
    pub age: Duration,
    /// The class it is in, in words.
    pub class: String,
    /// Most hits a second that holding it can give.
    pub index: f64,
    /// The same of the block that would go next: what this one is measured against, per byte.
    pub lowest_index: f64,
    /// The chance that it is read again, by time from now.
    pub returns: Vec<ReturnChance>,
}

/// A point of a return curve.
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
        let hour = 3600.0;
        write!(
            f,
            "; worth {:.3} hits an hour, what goes next {:.3}",
            self.index * hour,
            self.lowest_index * hour
        )
    }
}

/// What one instance of a policy knows of a block, in terms that another instance of the same policy understands: how
/// tiers ask each other's opinion of a block that only one of them holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Time since it was last read.
    pub age: Duration,
    /// How often it was read after it came.
    pub reuses: u8,
    /// Position in its chain.
    pub position: u32,
    /// The policy's own number of the block's class,
    pub class: u8,
    /// of the class by which it is kept, which may be that of what depends on it,
    pub kept_as: u8,
    /// and of the features of the request that it came with.
    pub features: u16,
    /// Tells the chains of the instance that answered apart for a while: neighbours of one chain have the same.
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
        };
        assert_eq!(
            explanation.to_string(),
            "kept: reused twice, last read 1.50m ago; returns with 41 % within 10m; worth 7.200 hits an hour, \
             what goes next 0.360"
        );
    }
}
