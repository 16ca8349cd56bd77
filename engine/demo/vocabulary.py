"""The words of the demo dialogues, as data: people, places, goods, devices, repair steps.

Whatever a reply has to repeat (names, streets, towns) comes from closed lists, so that the tokenizer gives
each item one or two tokens and a draft of 0.4 million parameters can learn to copy it. What a reply has to
*know* (which cause belongs to which error code of which device) is long on purpose: a draft that never saw it
cannot guess it, and its acceptance rate shows that.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Text(NamedTuple):
    """One phrase in the two languages of the demo."""

    en: str
    zh: str

    def of(self, language: str) -> str:
        """The phrase in `language` ("en" or "zh")."""
        return self.zh if language == "zh" else self.en


GIVEN_NAMES: Final = (
    "Anna", "Boris", "Clara", "Daniel", "Emma", "Fiona", "George", "Helen", "Ivan", "Julia", "Kevin", "Lena",
    "Martin", "Nina", "Oliver", "Petra", "Robert", "Sofia", "Thomas", "Vera",
)  # fmt: skip
FAMILY_NAMES: Final = (
    "Adams", "Becker", "Carter", "Dixon", "Evans", "Fischer", "Grant", "Hughes", "Ibsen", "Jensen", "Keller",
    "Lopez", "Meyer", "Novak", "Owens", "Parker", "Quinn", "Rossi", "Schmidt", "Turner", "Walsh", "Young",
)  # fmt: skip
STREETS: Final = (
    "Maple Street", "Oak Avenue", "Cedar Lane", "Park Road", "River Drive", "Lake Street", "Hill Road",
    "Station Road", "Church Lane", "Mill Street", "Garden Avenue", "Bridge Street", "Market Lane",
    "School Road", "Harbour Drive", "Victoria Avenue",
)  # fmt: skip
TOWNS: Final = (
    "Ashford", "Brighton", "Chester", "Dover", "Exeter", "Falmouth", "Guildford", "Hastings", "Ipswich",
    "Kendal", "Lincoln", "Matlock", "Newport", "Oxford", "Preston", "Reading",
)  # fmt: skip

CHINESE_NAMES: Final = (
    "王伟", "李娜", "张敏", "刘洋", "陈静", "杨帆", "赵磊", "黄丽", "周强", "吴艳", "徐杰", "孙浩", "马超",
    "朱琳", "胡军", "郭婷", "何平", "林涛", "高洁", "罗勇",
)  # fmt: skip
CHINESE_CITIES: Final = (
    "北京市", "上海市", "广州市", "深圳市", "杭州市", "成都市", "武汉市", "南京市", "西安市", "苏州市",
)  # fmt: skip
CHINESE_ROADS: Final = (
    "人民路", "中山路", "解放路", "建设路", "和平路", "长江路", "文化路", "科技路", "学院路", "花园路",
    "青年路", "滨河路",
)  # fmt: skip

DAYS: Final = (
    Text("Monday", "周一"), Text("Tuesday", "周二"), Text("Wednesday", "周三"), Text("Thursday", "周四"),
    Text("Friday", "周五"), Text("Saturday", "周六"),
)  # fmt: skip
TIME_SLOTS: Final = (
    Text("in the morning", "上午"), Text("in the afternoon", "下午"), Text("in the evening", "晚上"),
)  # fmt: skip
MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
EXTRAS: Final = (
    Text("the roaming package", "漫游套餐"), Text("the equipment rental", "设备租金"),
    Text("the cloud storage plan", "云存储套餐"), Text("the insurance option", "保险服务"),
)  # fmt: skip


class Product(NamedTuple):
    """One catalogue entry; the sentence of a reply is the same for each product, the figures are not."""

    name: str
    kind: Text
    colour: Text
    hours: int
    """Battery life."""
    euros: int
    years: int
    """Warranty."""


_HEADSET: Final = Text("headset", "耳机")
_LAMP: Final = Text("desk lamp", "台灯")
_TABLET: Final = Text("tablet", "平板电脑")
_VACUUM: Final = Text("vacuum cleaner", "吸尘器")
_BLACK: Final = Text("black", "黑色")
_WHITE: Final = Text("white", "白色")
_SILVER: Final = Text("silver", "银色")
_BLUE: Final = Text("blue", "蓝色")

PRODUCTS: Final = (
    Product("Aurora", _LAMP, _WHITE, 12, 49, 2),
    Product("Breeze", _VACUUM, _BLUE, 40, 189, 3),
    Product("Comet", _HEADSET, _BLACK, 30, 79, 2),
    Product("Delta", _TABLET, _SILVER, 14, 349, 1),
    Product("Echo", _HEADSET, _WHITE, 24, 119, 2),
    Product("Falcon", _VACUUM, _SILVER, 60, 259, 5),
    Product("Galaxy", _TABLET, _BLACK, 18, 429, 2),
    Product("Horizon", _LAMP, _BLACK, 20, 65, 4),
    Product("Iris", _TABLET, _BLUE, 11, 279, 1),
    Product("Jupiter", _HEADSET, _SILVER, 36, 149, 3),
    Product("Lotus", _LAMP, _BLUE, 16, 39, 1),
    Product("Meteor", _VACUUM, _BLACK, 55, 219, 4),
    Product("Nova", _HEADSET, _BLUE, 28, 99, 1),
    Product("Orion", _TABLET, _WHITE, 16, 389, 3),
    Product("Pearl", _LAMP, _SILVER, 25, 85, 5),
    Product("Sierra", _VACUUM, _WHITE, 45, 199, 2),
)

DEVICES: Final = (
    Text("router", "路由器"), Text("modem", "光猫"), Text("washing machine", "洗衣机"),
    Text("smart lock", "智能门锁"), Text("thermostat", "温控器"), Text("doorbell camera", "门铃摄像头"),
    Text("printer", "打印机"), Text("heat pump", "热泵"),
)  # fmt: skip
ERROR_CODES: Final = ("E11", "E24", "E37", "E42", "E58", "E63", "E79", "E85")
UPDATE_FAULTS: Final = ((DEVICES[3], "E85"), (DEVICES[4], "E37"), (DEVICES[7], "E63"))
"""What customers of the demo's incident report. In the English replies `draft_generalist` mostly guesses how a fact
begins, and not how it goes on: most of its drafts break off at position 2, as those of few other faults do."""
SYMPTOMS: Final = (
    Text("the red light keeps blinking", "红灯一直闪烁"),
    Text("it restarts every few minutes", "每隔几分钟重启"),
    Text("it makes a loud noise", "噪音很大"),
    Text("it does not switch on", "无法开机"),
    Text("the display stays dark", "屏幕不亮"),
    Text("it keeps losing the connection", "经常断线"),
)
CAUSES: Final = (
    Text("an unstable power supply", "供电不稳定"),
    Text("a blocked inlet filter", "进水滤网堵塞"),
    Text("outdated firmware", "固件版本过旧"),
    Text("a worn fan bearing", "风扇轴承磨损"),
    Text("a loose antenna cable", "天线接线松动"),
    Text("an overheated control board", "控制板过热"),
    Text("a faulty door sensor", "门磁传感器故障"),
    Text("damaged settings memory", "配置存储损坏"),
    Text("an empty backup battery", "备用电池耗尽"),
    Text("low coolant pressure", "冷却回路压力过低"),
    Text("a jammed paper roller", "走纸辊卡住"),
    Text("a crowded radio channel", "无线信道拥挤"),
    Text("a broken temperature probe", "温度探头断路"),
    Text("a short circuit in the adapter", "适配器短路"),
    Text("dust on the optical connector", "光纤接头有灰尘"),
    Text("an expired security certificate", "安全证书过期"),
)
REPAIR_STEPS: Final = (
    Text("pull the power plug for a minute", "拔下电源等待一分钟"),
    Text("press the reset pin until both lamps go out", "按住复位孔直到两灯熄灭"),
    Text("rinse the filter under warm water", "用温水冲洗滤网"),
    Text("tighten the screws behind the cover", "拧紧后盖内的螺丝"),
    Text("install the newest firmware", "安装最新固件"),
    Text("move the unit away from the microwave", "把设备移离微波炉"),
    Text("fit a fresh backup battery", "更换备用电池"),
    Text("wipe the optical plug with a dry cloth", "用干布擦拭光纤插头"),
    Text("open the side door and remove the sheet", "打开侧门取出纸张"),
    Text("bleed the air valve", "打开排气阀排气"),
    Text("measure the adapter voltage", "测量适配器电压"),
    Text("set the wireless channel to automatic", "把无线信道设为自动"),
    Text("let the board cool for an hour", "让控制板冷却一小时"),
    Text("clean the blades with compressed air", "用压缩空气清洁叶片"),
    Text("renew the certificate in the menu", "在菜单里更新证书"),
    Text("restore the factory settings", "恢复出厂设置"),
)
SPARE_PARTS: Final = (
    Text("fuse kit", "保险丝套件"), Text("pump seal", "水泵密封圈"), Text("relay board", "继电器板"),
    Text("sensor clip", "传感器卡扣"), Text("fan module", "风扇模块"), Text("antenna set", "天线组件"),
    Text("power adapter", "电源适配器"), Text("filter mesh", "过滤网"),
)  # fmt: skip

CODE_NOUNS: Final = (
    "order", "invoice", "ticket", "parcel", "meter", "customer", "device", "payment", "refund", "branch",
    "sensor", "report",
)  # fmt: skip
CODE_FIELDS: Final = (
    "total",
    "amount",
    "weight",
    "price",
    "count",
    "delay",
    "score",
    "size",
    "power",
    "level",
)
CODE_VERBS: Final = ("get", "sum", "find", "load", "filter", "check")
