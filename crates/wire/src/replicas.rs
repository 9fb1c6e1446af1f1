use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ReplicaAt;

/// Where the replicas of one object are, best first. Most objects have one: then there is no allocation.
#[derive(Clone, Debug)]
pub struct Replicas(Places);

#[derive(Clone, Debug)]
enum Places {
    One(ReplicaAt),
    Many(Vec<ReplicaAt>),
}

impl Replicas {
    /// The replicas, best first.
    #[must_use]
    pub fn as_slice(&self) -> &[ReplicaAt] {
        match &self.0 {
            Places::One(at) => std::slice::from_ref(at),
            Places::Many(all) => all,
        }
    }
}

impl Deref for Replicas {
    type Target = [ReplicaAt];

    fn deref(&self) -> &[ReplicaAt] {
        self.as_slice()
    }
}

impl From<&[ReplicaAt]> for Replicas {
    fn from(all: &[ReplicaAt]) -> Self {
        match all {
            [one] => Self(Places::One(*one)),
            _ => Self(Places::Many(all.to_vec())),
        }
    }
}

impl From<Vec<ReplicaAt>> for Replicas {
    fn from(all: Vec<ReplicaAt>) -> Self {
        match all[..] {
            [one] => Self(Places::One(one)),
            _ => Self(Places::Many(all)),
        }
    }
}

impl FromIterator<ReplicaAt> for Replicas {
    fn from_iter<I: IntoIterator<Item = ReplicaAt>>(all: I) -> Self {
        let mut all = all.into_iter();
        let (Some(first), second) = (all.next(), all.next()) else {
            return Self(Places::Many(Vec::new()));
        };
        match second {
            None => Self(Places::One(first)),
            Some(second) => Self(Places::Many(
                [first, second].into_iter().chain(all).collect(),
            )),
        }
    }
}

impl<'a> IntoIterator for &'a Replicas {
    type Item = &'a ReplicaAt;
    type IntoIter = std::slice::Iter<'a, ReplicaAt>;

    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}

impl PartialEq for Replicas {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Replicas {}

impl<const N: usize> PartialEq<[ReplicaAt; N]> for Replicas {
    fn eq(&self, other: &[ReplicaAt; N]) -> bool {
        self.as_slice() == other
    }
}

impl PartialEq<Vec<ReplicaAt>> for Replicas {
    fn eq(&self, other: &Vec<ReplicaAt>) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Serialize for Replicas {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_slice().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Replicas {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeId, SegmentId};

    #[test]
    fn replicas_are_the_same_whatever_they_are_made_of() {
        let at = |of| ReplicaAt::Disk {
            node: NodeId(of),
            segment: SegmentId(of),
        };
        for count in 0..4 {
            let all: Vec<ReplicaAt> = (0..count).map(at).collect();
            let made: [Replicas; 3] = [
                all.as_slice().into(),
                all.clone().into(),
                all.iter().copied().collect(),
            ];
            for replicas in made {
                assert_eq!(replicas, all);
                assert_eq!(replicas.into_iter().count(), all.len());
                assert_eq!(replicas, Replicas::from(all.clone()));
                let allocated = matches!(replicas.0, Places::Many(_));
                assert_eq!(allocated, count != 1, "{count}");
            }
        }
        assert_ne!(Replicas::from(vec![at(1)]), [at(2)]);
    }
}
