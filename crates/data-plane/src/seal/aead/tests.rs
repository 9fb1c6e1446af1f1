use super::*;

const SECRET: [u8; KEY_BYTES] = [5; KEY_BYTES];

fn nonce(number: u64) -> [u8; NONCE_BYTES] {
    let mut nonce = [3; NONCE_BYTES];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce
}

/// Both libraries, of which a processor uses one: the tests hold for the other too.
fn libraries() -> Vec<(AesLibrary, AeadKey)> {
    let key = |library: &AesLibrary| (*library, AeadKey::aes(*library, &SECRET));
    AesLibrary::ALL.iter().map(key).collect()
}

#[test]
fn the_library_follows_from_the_instructions() {
    let check = |avx2, wide_aes, avx512, expected| {
        let instructions = Instructions {
            avx2,
            wide_aes,
            avx512,
        };
        assert_eq!(instructions.fastest(), expected, "{instructions:?}");
    };
    // Zen 3, and Gracemont and its successors: VAES in AVX2 alone.
    check(true, true, false, AesLibrary::Ring);
    // Zen 4 and 5, Ice Lake and the later server cores.
    check(true, true, true, AesLibrary::AwsLc);
    // Haswell to Comet Lake, Zen 1 and 2; Skylake-X, which has AVX-512 without VAES.
    check(true, false, false, AesLibrary::AwsLc);
    check(true, false, true, AesLibrary::AwsLc);
    // Older ones, other architectures, and what only a hypervisor makes up.
    check(false, false, false, AesLibrary::AwsLc);
    check(false, true, false, AesLibrary::AwsLc);
    check(false, true, true, AesLibrary::AwsLc);
    check(false, false, true, AesLibrary::AwsLc);
}

/// A key that one library makes has to open what the other sealed, at any length and alignment: a block is 16 bytes, the
/// wide paths take 128 to 256 at a time, and each has code of its own for the rest.
#[test]
fn the_libraries_give_the_same_bytes_and_open_them() {
    let libraries = libraries();
    let lengths = (0..=300).chain([511, 512, 513, 4095, 4096, 4097, 65_535, 65_536]);
    let texts = lengths.flat_map(|length| [0, 1, 7, 16, 31].map(|offset| (length, offset)));
    for (number, (length, offset)) in texts.enumerate() {
        let nonce = nonce(number as u64);
        let authentic = &[9; 40][..number % 41];
        let text: Vec<u8> = (0..length).map(|at| (at * 7 + number) as u8).collect();
        let mut sealed = Vec::new();
        for (_, key) in &libraries {
            let mut room = [&vec![0; offset], text.as_slice()].concat();
            let tag = key.seal(nonce, authentic, &mut room[offset..]);
            sealed.push((room.split_off(offset), tag));
        }
        let (first, rest) = sealed.split_first().unwrap();
        assert!(
            length < 16 || first.0 != text,
            "{length} bytes are encrypted"
        );
        assert!(
            rest.iter().all(|it| it == first),
            "{length} bytes at {offset}"
        );
        for (library, key) in &libraries {
            let mut room = [&vec![0; offset], first.0.as_slice()].concat();
            let opened = key.open(nonce, authentic, &mut room[offset..], &first.1);
            assert!(opened, "{library}, {length} bytes at {offset}");
            assert!(
                room[offset..] == text,
                "{library}, {length} bytes at {offset}"
            );
        }
    }
}

/// Test case 16 of the GCM specification (McGrew and Viega): a text that ends within a block, and data beside it.
#[test]
fn each_library_gives_the_published_ciphertext() {
    let bytes = |hex: &str| -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digit).collect()
    };
    let secret = bytes("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
    let nonce = bytes("cafebabefacedbaddecaf888");
    let text = bytes(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e24\
         49a6b525b16aedf5aa0de657ba637b39",
    );
    let authentic = bytes("feedfacedeadbeeffeedfacedeadbeefabaddad2");
    let sealed = bytes(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b10\
         56828838c5f61e6393ba7a0abcc9f662",
    );
    let tag = bytes("76fc6ece0f4e1768cddf8853bb2d551b");
    for library in AesLibrary::ALL {
        let key = AeadKey::aes(*library, secret.first_chunk().unwrap());
        let mut found = text.clone();
        let found_tag = key.seal(*nonce.first_chunk().unwrap(), &authentic, &mut found);
        assert_eq!(
            (found, found_tag.to_vec()),
            (sealed.clone(), tag.clone()),
            "{library}"
        );
    }
}

#[test]
fn each_library_refuses_what_was_changed() {
    let text = [7; 200];
    for (library, key) in libraries() {
        let mut sealed = text;
        let tag = key.seal(nonce(1), b"length", &mut sealed);
        let opens = |number, authentic: &[u8], mut sealed: Vec<u8>, tag| {
            key.open(nonce(number), authentic, &mut sealed, &tag)
        };
        assert!(opens(1, b"length", sealed.to_vec(), tag));
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(1, b"length", changed, tag), "{library}, bit {bit}");
        }
        for bit in 0..tag.len() * 8 {
            let mut changed = tag;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !opens(1, b"length", sealed.to_vec(), changed),
                "{library}, bit {bit} of the tag"
            );
        }
        assert!(
            !opens(2, b"length", sealed.to_vec(), tag),
            "{library}, nonce"
        );
        assert!(
            !opens(1, b"lengths", sealed.to_vec(), tag),
            "{library}, data beside it"
        );
        assert!(
            !opens(1, b"length", sealed[..199].to_vec(), tag),
            "{library}, shorter"
        );
        assert!(
            !opens(1, b"length", [&sealed[..], &[0]].concat(), tag),
            "{library}, longer"
        );
        let other = AeadKey::aes(library, &[6; KEY_BYTES]);
        assert!(
            !other.open(nonce(1), b"length", &mut sealed, &tag),
            "{library}, key"
        );
    }
}

/// The one test that installs: what others make meanwhile is the same bytes.
#[test]
fn keys_are_of_the_fastest_library_until_another_is_installed() {
    let made = || match AeadKey::new(Cipher::Aes, &SECRET) {
        AeadKey::AwsLc(_) => AesLibrary::AwsLc,
        #[cfg(target_arch = "x86_64")]
        AeadKey::Ring(_) => AesLibrary::Ring,
    };
    assert_eq!(
        (made(), AesLibrary::current()),
        (AesLibrary::fastest(), AesLibrary::fastest())
    );
    for library in AesLibrary::ALL {
        library.install();
        assert_eq!((made(), AesLibrary::current()), (*library, *library));
    }
    AesLibrary::fastest().install();
}

#[test]
fn names_are_read_as_they_are_written() {
    for library in AesLibrary::ALL {
        assert_eq!(library.to_string().to_uppercase().parse(), Ok(*library));
    }
    let error = "openssl".parse::<AesLibrary>().unwrap_err().to_string();
    assert!(
        error.starts_with("`openssl` is no AES of this build; it has aws-lc"),
        "{error}"
    );
}
