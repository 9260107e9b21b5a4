"""What `nvidia-smi` prints, in forms of drivers 470 to 580: figures are made up, widths and words are its own."""

BOX = """\
Wed Nov 18 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.65.06              Driver Version: 580.65.06      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    2 |
| N/A   51C    P0            412W /  700W |   71234MiB /  81559MiB |     99%      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA GeForce RTX 4090        Off |   00000000:3B:00.0  On |                  N/A |
|ERR!   ERR! ERR!            N/A  / ERR!  |       1MiB /  24564MiB |    ERR!      Default |
|                                         |                        |                 ERR! |
+-----------------------------------------+------------------------+----------------------+
|   2  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   63C    P0             44W /  N/A  | Not Supported          |     96%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |
|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|                  |                                  |        ECC|                       |
|==================+==================================+===========+=======================|
|  0    3   0   0  |              12MiB /  9856MiB    | 14      0 |  1   0    1    0    0 |
|                  |               0MiB / 16383MiB    |           |                       |
+------------------+----------------------------------+-----------+-----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A            3154      G   /usr/lib/xorg/Xorg                       18MiB |
|    0   N/A  N/A           44757      C   VLLM::EngineCore                      48829MiB |
|    0    3    0            44758    C+G   ...env/bin/python                         N/A  |
+-----------------------------------------------------------------------------------------+
"""

OLD_BOX = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.87.00    Driver Version: 418.87.00    CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:00:1E.0 Off |                    0 |
| N/A   42C    P0    55W / 300W |  14021MiB / 16130MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0      4471      C   python3                                    14010MiB |
+-----------------------------------------------------------------------------+
"""

QUERY_LINE = (
    "$ nvidia-smi --query-gpu=timestamp,index,memory.used,memory.total,utilization.gpu,clocks.sm,clocks_event_reasons.active"
    " --format=csv,noheader -l 1"
)

DMON = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem     fb   pclk
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %     MB    MHz
 20261106   07:43:50      0    401     61      -     99     40  79810   1410
 20261106   07:43:50      1     71     31      -      -      0      4    210
"""

PMON = """\
# gpu         pid   type     fb   ccpm    command
# Idx           #    C/G     MB     MB    name
    0       4471     C    48829      0    VLLM::EngineCor
    1          -     -        -      -    -
"""

QUERY = """\

==============NVSMI LOG==============

Timestamp                                 : Wed Nov 18 10:00:00 2026
Driver Version                            : 535.104.05
CUDA Version                              : 12.2

Attached GPUs                             : 2
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Minor Number                          : 0
    GPU UUID                              : GPU-aa
    PCI
        Bus Id                            : 00000000:18:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 4
            Link Width
                Max                       : 16x
                Current                   : 16x
        Replays Since Reset               : 3
    Clocks Event Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 551 MiB
        Used                              : 71234 MiB
        Free                              : 9773 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
        Used                              : 7 MiB
        Free                              : 131065 MiB
    Utilization
        Gpu                               : 99 %
        Memory                            : 40 %
    ECC Errors
        Volatile
            SRAM Uncorrectable            : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Uncorrectable            : 1
            DRAM Correctable              : 9
            DRAM Uncorrectable            : 4
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 2
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 88 C
        GPU Slowdown Temp                 : 89 C
    GPU Power Readings
        Power Draw                        : 401.25 W
        Current Power Limit               : 700.00 W
    Clocks
        Graphics                          : 1140 MHz
        SM                                : 1140 MHz
    Max Clocks
        Graphics                          : 1980 MHz
        SM                                : 1980 MHz
    Processes
        GPU instance ID                   : N/A
        Compute instance ID               : N/A
        Process ID                        : 4471
            Type                          : C
            Name                          : VLLM::EngineCore
            Used GPU Memory               : 70000 MiB
        GPU instance ID                   : N/A
        Compute instance ID               : N/A
        Process ID                        : 77
            Type                          : C
            Name                          : /usr/bin/python3
            Used GPU Memory               : 900 MiB

GPU 00000000:3B:00.0
    Minor Number                          : 1
    GPU UUID                              : GPU-bb
    FB Memory Usage
        Total                             : N/A
        Used                              : GPU is lost
    Processes                             : None
"""
