//! Every mover there is, each with two ends and the memory that it is at home with.

use std::sync::Arc;

use slackwater_transfer::{Engine, Home, Local, Mover};

use crate::fabric::Fabric;
use crate::world::{End, World, anonymous, host_end, segment, shared};

pub(crate) fn worlds() -> Vec<fn() -> World> {
    vec![local, host_shared, host_attached, fabric]
}

fn local() -> World {
    let end = |name| {
        let life = Home::open().unwrap();
        let movers: Vec<Arc<dyn Mover>> = vec![Arc::new(Local::new(&life))];
        let segment = segment(name, &life, None);
        End { engine: Engine::assemble(life, segment, movers), make: anonymous }
    };
    World::new("local", end("near"), end("far"))
}

fn host_shared() -> World {
    World::new("host, shared", host_end("near", anonymous), host_end("far", shared))
}

fn host_attached() -> World {
    World::new("host, attached", host_end("near", shared), host_end("far", anonymous))
}

fn fabric() -> World {
    let end = |name| {
        let life = Home::open().unwrap();
        let movers: Vec<Arc<dyn Mover>> = vec![Arc::new(Fabric::start(&life))];
        let segment = segment(name, &life, None);
        End { engine: Engine::assemble(life, segment, movers), make: anonymous }
    };
    World::new("fabric", end("near"), end("far"))
}
