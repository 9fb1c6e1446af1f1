use serde::{Deserialize, Serialize};
use slackwater_meta::evict::{Explanation, Leader};
use slackwater_meta::{Held, Opinion};
use slackwater_wire::{Key, SegmentKind, Tenant};

use super::shared::Shared;
use super::views::ValueViews;
use super::{StoreError, Tier};

/// Why a tier keeps an object, or will let it go. Field names are a contract with scripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// The tier.
    pub tier: Tier,
    /// Whether the object is there. An SSD's policy also knows what is in the memory above it and may be written to it.
    pub held: bool,
    /// The policy of eviction.
    pub policy: String,
    /// What it has learned; none of policies that know nothing but an order.
    pub learned: Option<Learned>,
    /// The views of the object that are open, at the first tier that has an opinion.
    #[serde(default)]
    pub views: Option<Viewed>,
    /// The same in a sentence.
    pub words: String,
}

/// What a policy has learned of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    /// Its class, in words.
    pub class: String,
    /// How often it was read after it came.
    pub reuses: u32,
    /// Seconds since it was last read.
    pub age_s: f64,
    /// Most hits a second that holding it can give.
    pub index: f64,
    /// The same of what would go next.
    pub lowest_index: f64,
    /// The chance that it is read again, by time from now.
    pub returns: Vec<ReturnChance>,
    /// The rule that the policy follows, where it has several.
    #[serde(default)]
    pub rule: Option<String>,
    /// By which share of the blocks that rule hit more than the best other one in the simulated caches; of no meaning
    /// without a rule.
    #[serde(default)]
    pub rule_lead: f64,
}

/// Views that are open on an object.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Viewed {
    /// How many.
    pub open: u32,
    /// Seconds since the oldest was opened.
    pub oldest_s: f64,
    /// Whether that is longer than a view may be open.
    pub late: bool,
}

/// A point of a return curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReturnChance {
    /// Seconds from now.
    pub within_s: f64,
    /// From 0 to 1.
    pub chance: f64,
}

impl Shared {
    /// See [`super::Store::explain`].
    pub(super) fn explain(
        &self,
        key: &[u8],
        tenant: &Tenant,
    ) -> Result<Option<Vec<Reason>>, StoreError> {
        self.check_open()?;
        let key = Key::new(key)?;
        let (opinions, views) = self.with(|core, now| {
            let opinions = core
                .master()
                .and_then(|master| master.explain(now, tenant, &key));
            (opinions, core.views.of(now, tenant, &key))
        })?;
        let mut reasons: Option<Vec<Reason>> =
            opinions.map(|opinions| opinions.into_iter().map(Reason::from).collect());
        let first = reasons.as_mut().and_then(|reasons| reasons.first_mut());
        if let (Some(reason), Some(views)) = (first, views) {
            reason.add(views);
        }
        Ok(reasons)
    }
}

impl From<Opinion> for Reason {
    fn from(opinion: Opinion) -> Self {
        let Opinion {
            kind,
            held,
            policy,
            explanation,
        } = opinion;
        let (tier, name) = match kind {
            SegmentKind::Memory => (Tier::Memory, "memory"),
            SegmentKind::Disk => (Tier::Disk, "SSD"),
        };
        let place = match held {
            Held::Here => format!("in {name}"),
            Held::Above => format!("not on {name} yet, and would there be"),
        };
        let why = explanation.as_ref().map_or_else(
            || format!("in a line of {policy}, which knows nothing but the order"),
            ToString::to_string,
        );
        Self {
            tier,
            held: held == Held::Here,
            policy: policy.to_owned(),
            learned: explanation.map(Learned::from),
            views: None,
            words: format!("{place}, {why}"),
        }
    }
}

impl From<Explanation> for Learned {
    fn from(explanation: Explanation) -> Self {
        let leader = explanation.leader.as_ref();
        let returns = explanation.returns.iter().map(|point| ReturnChance {
            within_s: point.within.as_secs_f64(),
            chance: point.chance,
        });
        Self {
            rule: leader.map(|leader| leader.policy.to_owned()),
            rule_lead: leader.map_or(0.0, Leader::lead),
            class: explanation.class,
            reuses: explanation.reuses,
            age_s: explanation.age.as_secs_f64(),
            index: explanation.index,
            lowest_index: explanation.lowest_index,
            returns: returns.collect(),
        }
    }
}

impl Reason {
    fn add(&mut self, views: ValueViews) {
        let ValueViews { open, oldest, late } = views;
        let many = if open == 1 { "view is" } else { "views are" };
        let too_long = if late { ", which is too long" } else { "" };
        let oldest_s = oldest.as_secs_f64();
        self.words += &format!("; {open} {many} open, the oldest for {oldest_s:.1} s{too_long}");
        self.views = Some(Viewed {
            open,
            oldest_s,
            late,
        });
    }
}
