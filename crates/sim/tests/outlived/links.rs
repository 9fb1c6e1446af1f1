//! Links between the master and its nodes: they break, and what was not acknowledged is sent again.

use super::*;

impl Pool {
    pub(super) fn connect(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.link.is_some() {
            return;
        }
        let hello = Up::Hello(
            node.life,
            node.welcomed,
            node.orders.taken(),
            node.agent.highest_generation(),
        );
        node.link = Some(Link {
            up: VecDeque::from([hello]),
            ..Link::default()
        });
    }

    pub(super) fn cut(&mut self, at: usize) {
        if self.nodes[at].link.take().is_some() {
            self.carries.fail(at);
            self.input(Input::NodeAway(NodeId(at as u32)));
        }
    }

    /// The process of a node dies with its memory, and another one begins.
    pub(super) fn kill(&mut self, at: usize) {
        self.cut(at);
        let number = self.nodes[at].process + 1;
        let life = self.rng.next_u64();
        self.carries.forget(at);
        self.nodes[at] = Node::start(at as u32, number, life);
        // Writes to it are over.
        let segment = memory(at as u32);
        self.open
            .retain(|open| open.all.iter().all(|it| it.segment != segment));
    }

    /// One message arrives, up or down.
    pub(super) fn deliver(&mut self, at: usize) {
        self.connect(at);
        self.nodes[at].speak(self.now);
        let up = self.rng.below(2) == 0;
        let Some(link) = &mut self.nodes[at].link else {
            return;
        };
        if up {
            let message = link.up.pop_front();
            message.into_iter().for_each(|it| self.arrived_up(at, it));
        } else {
            let message = link.down.pop_front();
            message.into_iter().for_each(|it| self.arrived_down(at, it));
        }
    }

    pub(super) fn arrived_up(&mut self, at: usize, message: Up) {
        let number = at as u32;
        match message {
            Up::Hello(life, welcomed, taken, generation) => {
                let node = NodeId(number);
                if !self.master.has_node(node) {
                    self.members.remove(&number);
                }
                let known = self.members.get_mut(&number);
                let attached = match known {
                    Some(member) if member.life == life && welcomed => {
                        match member.orders.resume(taken) {
                            Ok(()) => Attached::Resumed {
                                taken: member.reports.tell(),
                            },
                            Err(_) => Attached::Unknown,
                        }
                    }
                    _ if welcomed => Attached::Unknown,
                    _ => Attached::New { floor: 0 },
                };
                let attached = match attached {
                    Attached::New { .. } => self.attach(number, life, generation),
                    attached => attached,
                };
                if let Attached::Resumed { .. } = attached {
                    self.input(Input::NodeBack(node));
                }
                if let Some(link) = &mut self.nodes[at].link {
                    link.greeted = true;
                    link.down.push_back(Down::Welcome(attached));
                }
                self.order(number);
            }
            Up::Reports(taken, first, reports) => {
                let Some(member) = self.members.get_mut(&number) else {
                    return;
                };
                member.orders.acknowledge(taken).expect("it was sent");
                let reports = member.reports.accept(first, reports).expect("in order");
                for report in reports {
                    let node = NodeId(number);
                    self.input(Input::Report { node, report });
                }
                self.order(number);
            }
        }
    }

    pub(super) fn attach(&mut self, number: u32, life: u64, generation: u64) -> Attached {
        let node = NodeId(number);
        self.doom_drains(number);
        self.members.remove(&number);
        self.input(Input::NodeLost(node));
        self.input(Input::Request {
            client: ClientId(1),
            host: None,
            permissions: Permissions::FULL,
            operation: OperationId::unrepeated(0),
            request: Request::Mount(Mount {
                segment: memory(number),
                name: format!("memory{number}"),
                node,
                incarnation: Incarnation(self.nodes[number as usize].process),
                kind: SegmentKind::Memory,
                bytes: GRANULES * GRANULE,
                host: String::new(),
                generations: Some(generation),
                watermarks: None,
            }),
        });
        let floor = self
            .master
            .generations_from(memory(number))
            .expect("it is mounted");
        let member = Member {
            life,
            process: self.nodes[number as usize].process,
            orders: NumberedSender::new(),
            reports: NumberedReceiver::default(),
        };
        self.members.insert(number, member);
        Attached::New { floor }
    }

    /// Behind what is on the link of a node, if it has one.
    pub(super) fn ask_first(&mut self, node: u32, names: Vec<ObjectName>) {
        let link = self.nodes[node as usize].link.as_mut();
        if let Some(link) = link.filter(|link| link.greeted) {
            link.down.push_back(Down::AnnounceFirst(names));
        }
    }

    pub(super) fn arrived_down(&mut self, at: usize, message: Down) {
        let now = self.now;
        let life = self.rng.next_u64();
        let node = &mut self.nodes[at];
        match message {
            Down::Welcome(Attached::New { floor }) => {
                node.link.as_mut().expect("it came there").heard = true;
                node.welcomed = true;
                node.floor = floor;
                let published = node.agent.published();
                node.published = published.map(|it| (it.offset, it.generation)).collect();
                let mut out = Vec::new();
                node.agent.begin_announcing(now, &mut out);
                node.take(out);
            }
            Down::Welcome(Attached::Resumed { taken }) => {
                node.reports.resume(taken).expect("it was taken");
                node.link.as_mut().expect("it came there").heard = true;
            }
            Down::Welcome(Attached::Unknown) => {
                (node.life, node.welcomed) = (life, false);
                node.agent.stop_announcing();
                node.reports = NumberedSender::new();
                node.orders = NumberedReceiver::default();
                node.link = None;
                self.connect(at);
            }
            Down::Welcome(Attached::Refused(code)) => panic!("refused: {code}"),
            Down::AnnounceFirst(names) => node.agent.announce_first(&names),
            Down::Orders(taken, first, orders) => {
                node.reports.acknowledge(taken).expect("it was sent");
                for order in node.orders.accept(first, orders).expect("in order") {
                    if let Order::Fence(extents) = &order {
                        for extent in extents {
                            node.published.remove(&(extent.offset, extent.generation));
                        }
                    }
                    let mut out = Vec::new();
                    node.agent.handle(now, AgentInput::Order(order), &mut out);
                    node.take(out);
                }
                node.orders.tell();
            }
        }
    }
}
