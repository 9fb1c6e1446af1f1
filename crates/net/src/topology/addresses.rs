//! The addresses of interfaces, which sysfs does not have: asked of the kernel by rtnetlink (RFC 3549; rtnetlink(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Every address, with the number of its interface.
pub(super) fn all() -> io::Result<Vec<(u32, IpAddr)>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // NETLINK_ROUTE, which is 0.
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    rustix::net::sendto(
        &socket,
        &request(),
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    let (mut found, mut buffer) = (Vec::new(), vec![0u8; ANSWER_BYTES]);
    loop {
        let receive = || rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty());
        let (read, _) = rustix::io::retry_on_intr(receive)?;
        if let Parsed::Last = parse(&buffer[..read], &mut found)? {
            return Ok(found);
        }
    }
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel sends no larger pieces of a dump.
const ANSWER_BYTES: usize = 64 << 10;
const HEADER_BYTES: usize = 16;
const ADDRESS_HEADER_BYTES: usize = 8;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const IFA_ADDRESS: u16 = 1;
/// The own address of a link between two points, whose IFA_ADDRESS is the other end.
const IFA_LOCAL: u16 = 2;

/// Whether more pieces of the answer follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parsed {
    More,
    Last,
}

/// A request for all addresses of all families.
fn request() -> Vec<u8> {
    let bytes = HEADER_BYTES + ADDRESS_HEADER_BYTES;
    let mut request = Vec::with_capacity(bytes);
    request.extend((bytes as u32).to_ne_bytes());
    request.extend(RTM_GETADDR.to_ne_bytes());
    request.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    request.resize(bytes, 0);
    request
}

fn parse(mut bytes: &[u8], found: &mut Vec<(u32, IpAddr)>) -> io::Result<Parsed> {
    while !bytes.is_empty() {
        let length = u32_at(bytes, 0)? as usize;
        let message = bytes
            .get(..length)
            .filter(|_| length >= HEADER_BYTES)
            .ok_or_else(short)?;
        match u16_at(message, 4)? {
            NLMSG_DONE => return Ok(Parsed::Last),
            NLMSG_ERROR => {
                let code = u32_at(message, HEADER_BYTES)?.cast_signed();
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
            }
            RTM_NEWADDR => found.extend(address(&message[HEADER_BYTES..])?),
            _ => {}
        }
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
    }
    Ok(Parsed::More)
}

/// The address of one message: its number of interface, and its attributes.
fn address(body: &[u8]) -> io::Result<Option<(u32, IpAddr)>> {
    let index = u32_at(body, 4)?;
    let mut attributes = body.get(ADDRESS_HEADER_BYTES..).ok_or_else(short)?;
    let (mut address, mut local) = (None, None);
    while !attributes.is_empty() {
        let length = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..length).ok_or_else(short)?;
        match u16_at(attributes, 2)? {
            IFA_ADDRESS => address = ip(value),
            IFA_LOCAL => local = ip(value),
            _ => {}
        }
        attributes = attributes.get(aligned(length)..).unwrap_or_default();
    }
    Ok(local.or(address).map(|address| (index, address)))
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(four).into());
    }
    <[u8; 16]>::try_from(value)
        .ok()
        .map(|sixteen| Ipv6Addr::from(sixteen).into())
}

/// Messages and attributes begin at multiples of four.
fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn u16_at(bytes: &[u8], at: usize) -> io::Result<u16> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map(|two| u16::from_ne_bytes(*two)).ok_or_else(short)
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found
        .map(|four| u32::from_ne_bytes(*four))
        .ok_or_else(short)
}

fn short() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a message of rtnetlink is cut short",
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        message.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.resize(HEADER_BYTES, 0);
        message.extend(body);
        message.resize(aligned(message.len()), 0);
        message
    }

    fn body(index: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, 24, 0, 0];
        body.extend(index.to_ne_bytes());
        for (kind, value) in attributes {
            body.extend(((4 + value.len()) as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(aligned(body.len()), 0);
        }
        body
    }

    #[test]
    fn addresses_are_those_of_this_end() {
        let six = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let bytes = [
            message(
                RTM_NEWADDR,
                &body(2, &[(3, b"eth0\0"), (1, &[10, 0, 0, 1])]),
            ),
            message(
                RTM_NEWADDR,
                &body(3, &[(1, &[10, 9, 0, 2]), (2, &[10, 9, 0, 1])]),
            ),
            message(99, &[1, 2, 3]),
            message(RTM_NEWADDR, &body(4, &[(1, &six)])),
            message(RTM_NEWADDR, &body(5, &[(1, &[1, 2])])),
            message(NLMSG_DONE, &[0; 4]),
        ]
        .concat();
        let mut found = Vec::new();
        assert_eq!(parse(&bytes, &mut found).unwrap(), Parsed::Last);
        let found: Vec<String> = found.iter().map(|(of, at)| format!("{of} {at}")).collect();
        assert_eq!(found, ["2 10.0.0.1", "3 10.9.0.1", "4 fd00::1"]);
        assert_eq!(parse(&[], &mut Vec::new()).unwrap(), Parsed::More);
    }

    #[test]
    fn an_error_of_the_kernel_is_told() {
        let refused = message(NLMSG_ERROR, &(-13i32).to_ne_bytes());
        let error = parse(&refused, &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn this_machine_has_a_loopback_address() {
        let found = all().unwrap();
        assert!(
            found.iter().any(|(_, address)| address.is_loopback()),
            "{found:?}"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much(kind in 0u16..32, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, &mut Vec::new());
            let _ = parse(&message(kind, &bytes), &mut Vec::new());
        }
    }
}
