//! Bytes on their way.

use slackwater_data_plane::protocol::{CloseReason, Want, initiating::Input};

use super::{Answer, World, pick, show};
use crate::client::ClientEnd;
use crate::sim::target::Server;

impl World {
    pub(super) fn carry(&mut self) {
        let Some(id) = pick(&mut self.rng, self.conns.keys().copied()) else {
            return;
        };
        let many = match self.rng.below(3) {
            0 => 1 + self.rng.below(8) as usize,
            1 => 1 + self.rng.below(100) as usize,
            _ => 2000,
        };
        let result = match self.rng.below(4) {
            0 => self.send_up(id, many),
            1 => self.send_down(id, many),
            2 => self.arrive_up(id, many).map_err(|reason| (true, reason)),
            _ => self.arrive_down(id, many).map_err(|reason| (false, reason)),
        };
        match result {
            Ok(()) => {}
            Err((true, _)) => self.end_server(id),
            Err((false, reason)) => self.end_client(id, &reason),
        }
    }

    fn send_up(&mut self, id: u64, many: usize) -> Result<(), (bool, CloseReason)> {
        let now = self.target.now;
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| !conn.cut) else {
            return Ok(());
        };
        if let Some((client, _)) = &mut conn.client {
            let mut bytes = Vec::new();
            client
                .initiator
                .gather(|piece| show(piece, many, &mut bytes));
            conn.up.extend(&bytes);
            client
                .handle(now, Input::Wrote(bytes.len()))
                .map_err(|reason| (false, reason))?;
        }
        Ok(())
    }

    fn send_down(&mut self, id: u64, many: usize) -> Result<(), (bool, CloseReason)> {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| !conn.cut) else {
            return Ok(());
        };
        if let Some((responder, _)) = &mut conn.server {
            let mut bytes = Vec::new();
            responder.gather(|piece| show(piece, many, &mut bytes));
            conn.down.extend(&bytes);
            let mut server = Server {
                conn: id,
                responder,
                target: &mut self.target,
            };
            server
                .handle(Answer::Wrote(bytes.len()))
                .map_err(|reason| (true, reason))?;
        }
        Ok(())
    }

    fn arrive_up(&mut self, id: u64, many: usize) -> Result<(), CloseReason> {
        let Some(conn) = self.conns.get_mut(&id) else {
            return Ok(());
        };
        let Some((responder, wire)) = &mut conn.server else {
            conn.up.clear();
            return Ok(());
        };
        // The kernel keeps what has no room.
        if responder.want() == Want::Nothing {
            return Ok(());
        }
        let bytes: Vec<u8> = conn.up.drain(..many.min(conn.up.len())).collect();
        let end = &mut Server {
            conn: id,
            responder,
            target: &mut self.target,
        };
        wire.take(end, &bytes)
    }

    fn arrive_down(&mut self, id: u64, many: usize) -> Result<(), CloseReason> {
        let now = self.target.now;
        let Some(conn) = self.conns.get_mut(&id) else {
            return Ok(());
        };
        let Some((client, wire)) = &mut conn.client else {
            conn.down.clear();
            return Ok(());
        };
        let bytes: Vec<u8> = conn.down.drain(..many.min(conn.down.len())).collect();
        wire.take(&mut ClientEnd { client, now }, &bytes)?;
        self.take_outputs(id);
        Ok(())
    }
}
