//! Redis's CRC-64, over bytes as they come.

/// The polynomial of Redis's CRC-64 (Jones), its bits reversed.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// For each byte, and for its place among eight, what it adds to the sum.
static TABLES: [[u64; 256]; 8] = tables();

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 {
                sum >> 1 ^ POLYNOMIAL
            } else {
                sum >> 1
            };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut place = 1;
    while place < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[place - 1][byte];
            tables[place][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        place += 1;
    }
    tables
}

/// The checksum of the bytes so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Crc64(u64);

impl Crc64 {
    /// The checksum of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> u64 {
        let mut sum = Self::default();
        sum.add(bytes);
        sum.get()
    }

    /// Its value.
    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// Goes on with these bytes, eight a step.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let (eights, rest) = bytes.as_chunks::<8>();
        let mut sum = self.0;
        for eight in eights {
            sum ^= u64::from_le_bytes(*eight);
            let places = sum.to_le_bytes().into_iter().zip(TABLES.iter().rev());
            sum = places.fold(0, |sum, (byte, table)| sum ^ table[usize::from(byte)]);
        }
        for byte in rest {
            let [low, ..] = sum.to_le_bytes();
            sum = sum >> 8 ^ TABLES[0][usize::from(low ^ byte)];
        }
        self.0 = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(Crc64::of(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        let mut sum = Crc64::default();
        for part in [&b"12"[..], b"", b"3456789"] {
            sum.add(part);
        }
        assert_eq!(sum.get(), 0xe9c6_d914_c4b8_d9ca);
    }
}
