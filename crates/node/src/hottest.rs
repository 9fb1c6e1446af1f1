use serde::Serialize;
use slackwater_meta::HotChain;
use slackwater_wire::Key;

/// The chains that were read most lately. Field names are a contract with scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HottestChains {
    /// Look-ups of all chains while somebody looked; one of a minute ago counts half.
    pub reads: f64,
    /// Those with the most look-ups, the hottest first.
    pub chains: Vec<ToldChain>,
}

/// A chain that is read often.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToldChain {
    /// The tenant that the chain belongs to.
    pub tenant: String,
    /// Its first key, on one line.
    pub key: String,
    /// Look-ups that began with this key, at most; one of a minute ago counts half.
    pub reads: f64,
    /// How many of these may have been look-ups of other chains.
    pub excess: f64,
}

impl HottestChains {
    /// What a master told; `shown` puts a key on one line.
    pub(crate) fn told(chains: &[HotChain], reads: f64, shown: impl Fn(&Key) -> String) -> Self {
        let chain = |chain: &HotChain| ToldChain {
            tenant: chain.tenant.name().to_owned(),
            key: shown(&chain.first),
            reads: chain.reads,
            excess: chain.excess,
        };
        Self {
            reads,
            chains: chains.iter().map(chain).collect(),
        }
    }
}
