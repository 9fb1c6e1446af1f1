//! Every mover, each with two ends and the memory that it reaches best.

use std::sync::{Arc, LazyLock};

use slackwater_transfer::host::{HostLimits, HostMover};
use slackwater_transfer::stage::{
    Device, SoftwareDevice, SoftwareMemory, StageLimits, StagedMover, Stager, Watch,
};
use slackwater_transfer::{Engine, Home, Local, Mover, SealConfig, Segment, Tcp, TcpConfig};
use slackwater_zmtp::{KeyPair, SecretKey};

use crate::fabric::Fabric;
use crate::world::{End, Look, StagingTurn, World, anonymous, host_end, segment, shared};

pub(crate) fn worlds() -> Vec<fn() -> World> {
    vec![
        local,
        host_shared,
        host_attached,
        tcp,
        tcp_sealed,
        device_over_tcp,
        device_over_host,
        device_from_tcp,
        device_to_device,
        fabric,
    ]
}

fn local() -> World {
    let end = |name| {
        let life = Home::open().unwrap();
        let movers: Vec<Arc<dyn Mover>> = vec![Arc::new(Local::new(&life))];
        let segment = segment(name, &life, None);
        End {
            engine: Engine::assemble(life, segment, movers),
            make: anonymous,
        }
    };
    World::new("local", end("near"), end("far"))
}

fn host_shared() -> World {
    World::new(
        "host, shared",
        host_end("near", anonymous),
        host_end("far", shared),
    )
}

fn host_attached() -> World {
    World::new(
        "host, attached",
        host_end("near", shared),
        host_end("far", anonymous),
    )
}

fn fabric() -> World {
    let end = |name| {
        let life = Home::open().unwrap();
        let movers: Vec<Arc<dyn Mover>> = vec![Arc::new(Fabric::start(&life))];
        let segment = segment(name, &life, None);
        End {
            engine: Engine::assemble(life, segment, movers),
            make: anonymous,
        }
    };
    World::new("fabric", end("near"), end("far"))
}

fn tcp_end(name: &str) -> End {
    tcp_end_with(name, TcpConfig::default())
}

fn tcp_sealed() -> World {
    let pair = |byte| KeyPair::of(SecretKey::from_bytes([byte; 32]));
    let end = |name, own: KeyPair, other: KeyPair| {
        let seal = Some(SealConfig {
            keys: own,
            clients: [other.public()].into(),
        });
        tcp_end_with(
            name,
            TcpConfig {
                seal,
                ..TcpConfig::default()
            },
        )
    };
    World::new(
        "tcp sealed",
        end("near", pair(1), pair(2)),
        end("far", pair(2), pair(1)),
    )
}

fn tcp_end_with(name: &str, config: TcpConfig) -> End {
    let life = Home::open().unwrap();
    let public_key = config
        .seal
        .as_ref()
        .map(|seal| *seal.keys.public().as_bytes());
    let tcp = Arc::new(Tcp::start(&life, config).unwrap());
    let segment = Segment {
        addresses: tcp.addresses().to_vec(),
        public_key,
        ..segment(name, &life, None)
    };
    End {
        engine: Engine::assemble(life, segment, vec![tcp]),
        make: anonymous,
    }
}

fn tcp() -> World {
    World::new("tcp", tcp_end("near"), tcp_end("far"))
}

/// One device for all tests, with little pinned memory, so that requests wait for it.
static DEVICE: LazyLock<(Arc<SoftwareDevice>, Arc<Stager>)> = LazyLock::new(|| {
    let device = Arc::new(SoftwareDevice::start(0).unwrap());
    let limits = StageLimits {
        chunk_bytes: 1 << 20,
        pinned_bytes_max: 4 << 20,
        watch: Watch::Callback,
    };
    let stager = Stager::start(Arc::clone(&device) as Arc<dyn Device>, limits).unwrap();
    (device, stager)
});

struct OnDevice(Arc<SoftwareMemory>);

impl Look for OnDevice {
    fn load(&self) -> Vec<u8> {
        self.0.load()
    }

    fn store(&self, bytes: &[u8]) {
        self.0.store(bytes);
    }
}

fn on_device(bytes: usize) -> StagingTurn {
    let (device, stager) = &*DEVICE;
    let memory = Arc::new(device.allocate(bytes).unwrap());
    // SAFETY: the allocation is kept by the registered memory itself.
    let staged = unsafe { stager.memory(memory.address(), bytes) }.unwrap();
    StagingTurn::looked_at(
        staged.kept_by(Arc::clone(&memory)),
        Box::new(OnDevice(memory)),
    )
}

fn device_end(name: &str) -> End {
    let life = Home::open().unwrap();
    let tcp = Arc::new(Tcp::start(&life, TcpConfig::default()).unwrap());
    let segment = Segment {
        addresses: tcp.addresses().to_vec(),
        ..segment(name, &life, None)
    };
    let movers: Vec<Arc<dyn Mover>> = vec![
        Arc::new(StagedMover::over(vec![Arc::clone(&tcp) as Arc<dyn Mover>])),
        tcp,
    ];
    End {
        engine: Engine::assemble(life, segment, movers),
        make: on_device,
    }
}

fn device_over_tcp() -> World {
    World::new(
        "software device to host over tcp",
        device_end("near"),
        tcp_end("far"),
    )
}

fn device_from_tcp() -> World {
    World::new(
        "host to software device over tcp",
        tcp_end("near"),
        device_end("far"),
    )
}

fn device_to_device() -> World {
    World::new(
        "software device to software device over tcp",
        device_end("near"),
        device_end("far"),
    )
}

fn device_over_host() -> World {
    let life = Home::open().unwrap();
    let host: Arc<dyn Mover> =
        Arc::new(HostMover::start(&life, HostLimits::default(), None).unwrap());
    let movers: Vec<Arc<dyn Mover>> =
        vec![Arc::new(StagedMover::over(vec![Arc::clone(&host)])), host];
    let near = segment("near", &life, None);
    let near = End {
        engine: Engine::assemble(life, near, movers),
        make: on_device,
    };
    World::new(
        "software device over shared memory",
        near,
        host_end("far", shared),
    )
}
