//! Texts: command lines, JSON, tables of the kernel's.

use crate::Seed;

fn numbered(texts: &[&str]) -> Vec<Seed> {
    texts.iter().enumerate().map(|(n, text)| (format!("{n:02}"), text.as_bytes().to_vec())).collect()
}

pub(crate) fn argv() -> Vec<Seed> {
    numbered(&[
        "--root R --log L --log-format json create --bundle B --pid-file P ID",
        "--root R --log L --log-format json --systemd-cgroup create --bundle B --pid-file P --console-socket S ID",
        "create --bundle=B --pid-file=P ID",
        "create -b B create",
        "run -d ID",
        "--root R start ID",
        "features",
        "create --help",
        "--root create state ID",
        "--root R exec --process /tmp/p --detach --pid-file F ID",
        "exec ID prog --log x",
        "exec -e A=b -t ID sh -c true",
        "--root R delete --force ID",
        "update --resources - ID",
        "update ID --cpu-quota -1 --cpu-period 100000",
        "update --memory 50M ID --resources -",
        "--new-flag value create ID",
        "create --bundle A -b B ID",
        "create ID --bundle B",
        "create -- ID",
        "run --keep --no-pivot --preserve-fds 3 ID",
        "restore --image-path I --work-path W --bundle B ID",
        "--cgroup-manager=cgroupfs --debug create -b B ID",
        "--log= create  ID",
        "delete -f -- ID",
        "update --memory 1 --r - ID",
    ])
}

pub(crate) fn json() -> Vec<Seed> {
    let mut seeds = numbered(&[
        "{}",
        " {\"process\":{\"env\":[\"A=\\u003c\\ud83d\\ude00\"],\"args\":null}}\n",
        "{\"annotations\":{\"Mounts\":\"1\",\"mounts\":\"2\"}}",
        "{\"linux\":{\"resources\":{\"CPU\":{\"Cpus\":\"0\"},\"hugepageLimits\":[{\"pagesize\":\"2MB\"}]}}}",
        "{\"linux\":{\"resources\":{\"unified\":{\"memory.high\":\"1\"},\"pids\":{\"limit\":-1}}},\"x\":[1.5e3,-0,0,1e999]}",
        "{\"mounts\":[],\"mo\\u0075nts\":[]}",
        "{\"annotations\":{\"a\":\"1\",\"a\":\"2\"}}",
        "{\"Mounts\":[]}",
        "{} {}",
        "\u{feff}{}",
        "{\"a\":\"\\ud800\\u0041\"}",
        "{\"a\":\"x\\u0000y\"}",
        "{\"a\":01}",
        "{\"a\":[1,2,],\"b\":nul}",
        "{\"a\\/b\":\"\\\"\\\\\\b\\f\\n\\r\\t\\u00e9\"}",
        "{\"mount\u{17f}\":[true,false,null]}",
        "[[[[[[[[[[]]]]]]]]]]",
        "{\"linux\":{\"devices\":[{\"path\":\"/dev/x\",\"type\":\"c\",\"major\":195,\"minor\":18446744073709551615}]}}",
    ]);
    let members: Vec<String> = (0..40).map(|n| format!("\"k{n}\":{n}")).collect();
    seeds.push(("many".into(), format!("{{{}}}", members.join(",")).into_bytes()));
    seeds.push(("deep".into(), format!("{}{}", "[".repeat(64), "]".repeat(64)).into_bytes()));
    seeds.push(("deeper".into(), format!("{}{}", "[".repeat(65), "]".repeat(65)).into_bytes()));
    seeds
}

pub(crate) fn mountinfo() -> Vec<Seed> {
    let mut seeds = numbered(&[
        "24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=12334432k,mode=755\n",
        "36 31 0:33 /docker/a\\040b /sys/fs/cgroup/devices rw shared:9 master:2 - cgroup cgroup rw,devices\n",
        "not a mount\n1 2 3:4 / / rw - x\n",
        "50 27 259:1 / /mnt/caf\u{e9}\\134x\\012y ro,nosuid unbindable - ext4 /dev/with\\040blank rw\n",
        "51 27 0:50 / /mnt/empty rw - fuse.x  rw\n",
        "25 20 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        "62 25 0:44 /../../.. /sys/fs/cgroup/x ro - cgroup cgroup rw,devices\n",
        "63 25 0:45 / /merged rw - overlay overlay rw,lowerdir=/a:/b,upperdir=/c\n",
        "1 1 4294967295:4294967295 / / rw - t s o\n1 1 4294967296:0 / / rw - t s o\n",
        "70 1 8:1 /a\\04 /b\\400 rw - ext4 \\\\ rw\n",
    ]);
    seeds.push(("made".into(), (0..=255).collect()));
    seeds.push(("bytes".into(), b"1 2 8:1 / /\xff\xfe rw - ext4 x rw\n".to_vec()));
    seeds
}

pub(crate) fn proc_devices() -> Vec<Seed> {
    let mut seeds = numbered(&[
        "Character devices:\n  1 mem\n  4 /dev/vc/0\n  4 tty\n195 nvidia-frontend\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  7 loop\n195 nvidia\n",
        "Block devices:\n195 nvidia\n",
        "",
        "Character devices:\n",
        "Character devices:\n4096 nvidia\n-1 x\n1x y\n 99999999999 z\n",
        "Character devices:\r\n195 nvidia\r\n",
        "Character devices:\n195  two  blanks \n\t195 tab\n195\n",
        "195 nvidia\nCharacter devices:\n507 gdrdrv\nCharacter devices:\n506 vfio\n",
        "Character devices:\n+195 plus\n0195 zero\n",
    ]);
    seeds.push(("made".into(), (0..=255).rev().collect()));
    seeds.push(("bytes".into(), b"Character devices:\n195 nvi\xffdia\n\xff\n".to_vec()));
    seeds
}
