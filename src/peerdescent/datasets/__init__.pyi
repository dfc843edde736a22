from .dataset import Dataset as Dataset
from .loader import load as load
from .partitions import Partition as Partition
from .planted import synthetic as synthetic
from .sets import SETS as SETS
from .sets import NamedSet as NamedSet
