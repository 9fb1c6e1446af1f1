//! The client: puts in steps of its own, reads and removals, and what it is answered.

use super::*;

/// What the client waits for.
pub(super) enum Asked {
    Put {
        key: u64,
        request: Request,
    },
    End {
        key: u64,
        version: u64,
        request: Request,
    },
    Remove {
        key: u64,
        covers: u64,
        request: Request,
    },
    Get {
        key: u64,
        dead: u64,
    },
}

/// A put that was granted room, and the extents that are still to be written.
pub(super) struct Open {
    pub(super) key: u64,
    pub(super) version: u64,
    pub(super) left: Vec<ExtentRef>,
    pub(super) all: Vec<ExtentRef>,
}

impl Asked {
    /// What is repeated when the master has died.
    pub(super) fn request(&self) -> Option<Request> {
        match self {
            Self::Put { request, .. }
            | Self::End { request, .. }
            | Self::Remove { request, .. } => Some(request.clone()),
            Self::Get { .. } => None,
        }
    }
}

impl Pool {
    pub(super) fn replied(&mut self, operation: OperationId, reply: Reply) {
        let Some(asked) = self.asked.remove(&operation) else {
            return;
        };
        match (asked, reply) {
            (Asked::Put { key, .. }, Reply::PutStart(started)) => {
                if let [PutStarted::Granted { version, extents }] = &started[..] {
                    self.jobs.highest = version.0.max(self.jobs.highest);
                    self.open.push(Open {
                        key,
                        version: version.0,
                        left: extents.clone(),
                        all: extents.clone(),
                    });
                }
            }
            (Asked::End { key, version, .. }, Reply::Each(results)) if results[0].is_ok() => {
                let newest = self.newest.entry(key).or_default();
                *newest = version.max(*newest);
                let dead = self.dead.entry(key).or_default();
                *dead = (version - 1).max(*dead);
            }
            (Asked::Remove { key, covers, .. }, Reply::Each(results))
                if matches!(results[0], Ok(()) | Err(ErrorCode::ObjectNotFound)) =>
            {
                let dead = self.dead.entry(key).or_default();
                *dead = covers.max(*dead);
            }
            (Asked::Get { key, dead }, Reply::Get(lookups)) => {
                let [Lookup::Found(object)] = &lookups[..] else {
                    return;
                };
                assert!(
                    object.version.0 > dead,
                    "key {key}: version {} came back, {dead} was over",
                    object.version
                );
                self.hits += 1;
                let found = object.clone();
                found
                    .replicas
                    .iter()
                    .for_each(|at| self.read(key, &found, at));
            }
            _ => {}
        }
    }

    fn read(&mut self, key: u64, object: &Object, at: &ReplicaAt) {
        let ReplicaAt::Memory(extent) = at else {
            return;
        };
        let node = &mut self.nodes[(extent.segment.0 >> 1) as usize];
        let Some(access) = node.begin(extent, Access::Read) else {
            return;
        };
        let first = (extent.offset / GRANULE) as usize;
        let count = (extent.bytes / GRANULE) as usize;
        let right = node.stamps[first..first + count]
            .iter()
            .all(|it| *it == stamp(key, object.version.0));
        let live = node.end_access(access);
        assert!(!live || right, "wrong bytes of key {key} at {extent:?}");
    }

    pub(super) fn put(&mut self, key: u64) {
        let bytes = (1 + self.rng.below(3)) * GRANULE;
        let request = Request::PutStart(PutStart {
            tenant: Tenant::DEFAULT,
            entries: vec![PutEntry {
                key: name(key),
                bytes,
            }],
            chain: Chain::default(),
            config: PutConfig {
                mode: PutMode::Upsert,
                replicas: 1 + self.rng.below(2) as u32,
                wait: Some(Duration::ZERO),
                ..PutConfig::default()
            },
        });
        let again = request.clone();
        self.ask(
            Asked::Put {
                key,
                request: again,
            },
            request,
        );
    }

    /// A step of a put that was granted room, maybe long ago.
    pub(super) fn write(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let open = &mut self.open[at];
        let (key, version) = (open.key, open.version);
        if let Some(extent) = open.left.pop() {
            let node = &mut self.nodes[(extent.segment.0 >> 1) as usize];
            match node.begin(&extent, Access::Write) {
                Some(access) => node.writes.push((access, extent, stamp(key, version))),
                None => drop(self.open.remove(at)),
            }
            return;
        }
        let open = self.open.swap_remove(at);
        // A client that does not wait for its bytes gets an answer that they are not there.
        if self.rng.below(8) > 0 {
            open.all.iter().for_each(|extent| self.land_at(extent));
        }
        // The nodes look at the bytes before the master decides.
        for extent in &open.all {
            let node = &mut self.nodes[(extent.segment.0 >> 1) as usize];
            let first = (extent.offset / GRANULE) as usize;
            let held = node.begin(extent, Access::Read);
            let right = node.stamps[first] == stamp(key, version);
            let live = held.is_some_and(|access| node.end_access(access));
            if !live || !right || node.link.is_none() {
                return;
            }
            let sealed = node.sealed.entry(extent.offset).or_default();
            *sealed = (extent.generation + 1).max(*sealed);
        }
        let puts = vec![PutDone {
            key: name(key),
            version: Version(version),
            checksum: Checksum(stamp(key, version)),
        }];
        let tenant = Tenant::DEFAULT;
        let request = Request::PutEnd(PutEnd {
            tenant,
            puts,
            hosts: None,
        });
        let again = request.clone();
        let asked = Asked::End {
            key,
            version,
            request: again,
        };
        self.ask(asked, request);
    }

    pub(super) fn get(&mut self, key: u64) {
        let request = Request::Get(Get {
            tenant: Tenant::DEFAULT,
            keys: vec![name(key)],
            chain: Chain::default(),
            hold: Hold::Lease,
            prefix_only: false,
        });
        let dead = self.dead.get(&key).copied().unwrap_or(0);
        self.ask(Asked::Get { key, dead }, request);
    }

    pub(super) fn remove(&mut self, key: u64) {
        let request = Request::Remove(Remove {
            tenant: Tenant::DEFAULT,
            keys: vec![name(key)],
            force: true,
        });
        let covers = self.newest.get(&key).copied().unwrap_or(0);
        let again = request.clone();
        let asked = Asked::Remove {
            key,
            covers,
            request: again,
        };
        self.ask(asked, request);
    }
}
